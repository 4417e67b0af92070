/* The compiled meter: does what PureMeter in _meter.py does, several times faster. Optional.

   _meter.py says what the attributes mean, and its methods have functions of the same names here; take_one() is the second half of its
   grab(). A number that is too large stays a Python object, and no grab succeeds: the scheduler then takes the permit in Python. With
   the GIL, a grab by time.monotonic_ns is one step; without it, critical sections make it one. */

#include <Python.h>
#include <stdbool.h>
#include <structmember.h>
#ifndef __SIZEOF_INT128__
#error "aiorate._cmeter needs a compiler with 128-bit integers, such as gcc or clang. Without this module, aiorate uses PureMeter."
#endif
#if PY_VERSION_HEX < 0x030D0000 /* the names of 3.13 */
typedef _PyTime_t PyTime_t;
#define PyTime_MonotonicRaw(now) (*(now) = _PyTime_GetMonotonicClock(), 0)
#define PyLong_AsNativeBytes(o, to, size, _) (size - _PyLong_AsByteArray((PyLongObject *)o, (unsigned char *)to, size, PY_LITTLE_ENDIAN, 1))
#define PyLong_FromNativeBytes(from, size, _) _PyLong_FromByteArray((unsigned char *)from, size, PY_LITTLE_ENDIAN, 1)
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif
#define SIGNED Py_ASNATIVEBYTES_NATIVE_ENDIAN /* and -1, the default, is an unsigned buffer */
#define LOCKED(meter, ...) Py_BEGIN_CRITICAL_SECTION(meter); __VA_ARGS__; Py_END_CRITICAL_SECTION()

/* No sum overflows: an instant has 64 bits and `unit` is below 2^62, so their product is at most 2^125. `cost`, `kept` and `due` are
   below that, so `idle` is below 2^126 and no sum in take_one() reaches 2^127. Aligned as a pointer is, because not all allocators
   promise 16 bytes. */
__extension__ typedef __int128 wide __attribute__((aligned(8)));
#define WITHIN(bits, number) (-((wide)1 << (bits)) < (number) && (number) < ((wide)1 << (bits)))

typedef struct {
    PyObject_HEAD
    long long until, try_until;
    unsigned long thread;
} LoopCheck;
typedef struct {
    PyObject_HEAD
    PyObject *read, *monotonic_ns; /* if they are the same object, grab() calls the C function behind it */
    PyObject *numbers;             /* the tuple that `line` was made from; NULL: NO_LINE */
    PyObject *odd_due;             /* `due` if it is None or does not fit; else NULL */
    PyObject *above;               /* NULL: None */
    LoopCheck *check;              /* NULL: None */
    struct line {
        wide unit, cost, slack, kept;
        bool straight; /* whether all of them fit, and they are not NO_LINE */
    } line;
    wide due, cut, peak;
    long long until, offset, since, grabs, last;
} Meter;
static PyModuleDef definition;
static PyType_Spec check_spec;

/* Whether the object is an int of that many bits at most. If so, `number` becomes its value. */
static bool to_wide(PyObject *object, wide *number, int bits) {
    int large;
    if (!PyLong_Check(object)) return false;
    *number = PyLong_AsLongLongAndOverflow(object, &large);
    if (!large) return WITHIN(bits, *number);
    bool fits = PyLong_AsNativeBytes(object, number, 16, SIGNED) <= 16 && WITHIN(bits, *number);
    PyErr_Clear();
    return fits;
}

static PyObject *from_wide(wide number) {
    return number == (long long)number ? PyLong_FromLongLong((long long)number) : PyLong_FromNativeBytes(&number, 16, SIGNED);
}

/* `looking`: only say whether there is one. */
static bool take_one(Meter *self, wide now, long long until, bool looking) {
    const struct line *line = &self->line;
    if (now >= until || !WITHIN(63, now) || self->odd_due || !line->straight) return false;
    wide ticks = now * line->unit, due = self->due, cut = self->cut;
    if (due > ticks) return false;
    bool late = now > self->since;
    wide idle = late && self->since * line->unit < due ? 0 : (late ? self->since * line->unit : ticks) - due;
    if (idle > line->slack) {
        if (late || line->kept < 0) return false;
        cut += idle - line->kept; due += idle - line->kept;
        idle = line->kept;
    }
    due += line->cost;
    if (!WITHIN(125, due) || !WITHIN(126, cut) || self->grabs == LLONG_MAX) return false;
    if (looking) return true;
    self->due = due; self->cut = cut;
    self->peak = idle > self->peak ? idle : self->peak;
    self->last = (long long)now; self->grabs++;
    return true;
}

/* 1: taken; 0: not; -1: an error is set. */
static int grab_from(Meter *self, bool trying) {
    long long until = self->until, checked = !self->check ? LLONG_MAX : trying ? self->check->try_until : self->check->until;
    bool real = self->read && self->read == self->monotonic_ns;
    PyObject *read, *answer, *instant = NULL;
    PyTime_t clock;
    wide now = 0;
    int taken;
    if (!until || !checked || (self->check && self->check->thread && self->check->thread != PyThread_get_thread_ident())) return 0;
    if (!real) {
        LOCKED(self, read = Py_XNewRef(self->read));
        answer = read ? PyObject_CallNoArgs(read) : PyErr_Format(PyExc_AttributeError, "read");
        instant = answer ? PyNumber_Index(answer) : NULL;
        Py_XDECREF(read); Py_XDECREF(answer);
        if (!instant) return -1;
        taken = to_wide(instant, &now, 125);
        Py_DECREF(instant);
        if (!taken) return 0;
    }
    LOCKED(self,
        if (real) now = PyTime_MonotonicRaw(&clock) == 0 ? (wide)clock : LLONG_MAX;
        taken = now < checked && take_one(self, now - self->offset, until, self->above != NULL));
    if (!taken || !self->above) return taken;
    taken = grab_from((Meter *)self->above, trying); /* which may run other code, if its clock is in Python */
    if (taken == 1) LOCKED(self, taken = take_one(self, now - self->offset, until, false));
    return taken;
}

static PyObject *grab(Meter *self, PyObject *const *args, Py_ssize_t count) {
    if (count > 1) return PyErr_Format(PyExc_TypeError, "grab() takes at most one argument, trying; %zd were given.", count);
    int trying = count ? PyObject_IsTrue(args[0]) : false, taken = trying < 0 ? -1 : grab_from(self, trying);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

#define WIDE_AT(self, offset) (*(wide *)((char *)self + (size_t)offset))
static PyObject *get_wide(Meter *self, void *offset) {
    wide number;
    LOCKED(self, number = WIDE_AT(self, offset));
    return from_wide(number);
}
static int set_wide(Meter *self, PyObject *object, void *offset) {
    wide number = 0;
    if (!object || !to_wide(object, &number, 126)) return PyErr_SetString(PyExc_OverflowError, "more than 126 bits."), -1;
    LOCKED(self, WIDE_AT(self, offset) = number);
    return 0;
}

static PyObject *get_due(Meter *self, void *Py_UNUSED(closure)) {
    wide due; PyObject *odd;
    LOCKED(self, due = self->due; odd = Py_XNewRef(self->odd_due));
    return odd ? odd : from_wide(due);
}
static int set_due(Meter *self, PyObject *object, void *Py_UNUSED(closure)) {
    wide due = 0;
    PyObject *odd = object && to_wide(object, &due, 125) ? NULL : Py_NewRef(object ? object : Py_None);
    LOCKED(self, self->due = due; Py_XSETREF(self->odd_due, odd));
    return 0;
}

static PyObject *get_numbers(Meter *self, void *Py_UNUSED(closure)) {
    PyObject *numbers;
    LOCKED(self, numbers = Py_XNewRef(self->numbers));
    return numbers ? numbers : Py_BuildValue("iidi", 1, 1, -Py_HUGE_VAL, -1);
}
static int set_numbers(Meter *self, PyObject *numbers, void *Py_UNUSED(closure)) {
    PyObject *unit, *cost, *slack, *kept; /* borrowed from the tuple */
    struct line line = {.slack = (wide)1 << 126}; /* more than any idle time: ENDLESS */
    if (!numbers || !PyTuple_CheckExact(numbers)) return PyErr_SetString(PyExc_TypeError, "numbers must be a tuple of four."), -1;
    if (!PyArg_ParseTuple(numbers, "OOOO:numbers", &unit, &cost, &slack, &kept)) return -1;
    line.straight = to_wide(unit, &line.unit, 62) && to_wide(cost, &line.cost, 125) && to_wide(kept, &line.kept, 125) &&
                    ((PyFloat_Check(slack) && PyFloat_AS_DOUBLE(slack) == Py_HUGE_VAL) || to_wide(slack, &line.slack, 125));
    LOCKED(self, self->line = line; Py_XSETREF(self->numbers, Py_NewRef(numbers)));
    return 0;
}

static PyObject *get_check(Meter *self, void *Py_UNUSED(closure)) { return Py_NewRef(self->check ? (PyObject *)self->check : Py_None); }
static int set_check(Meter *self, PyObject *object, void *Py_UNUSED(closure)) {
    if (object == Py_None) object = NULL;
    if (object && strcmp(Py_TYPE(object)->tp_name, check_spec.name)) return PyErr_SetString(PyExc_TypeError, "check must be a LoopCheck."), -1;
    LOCKED(self, Py_XSETREF(self->check, (LoopCheck *)Py_XNewRef(object)));
    return 0;
}

static PyObject *get_above(Meter *self, void *Py_UNUSED(closure)) { return Py_NewRef(self->above ? self->above : Py_None); }
static int set_above(Meter *self, PyObject *object, void *Py_UNUSED(closure)) {
    if (object && object != Py_None && !Py_IS_TYPE(object, Py_TYPE(self))) return PyErr_SetString(PyExc_TypeError, "above must be a Meter."), -1;
    Py_XSETREF(self->above, object && object != Py_None ? Py_NewRef(object) : NULL);
    return 0;
}

static int init(Meter *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"numbers", "due", NULL};
    PyObject *numbers = NULL, *due = Py_None, *clock, *module = PyType_GetModuleByDef(Py_TYPE(self), &definition);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:Meter", names, &numbers, &due)) return -1;
    if ((numbers && set_numbers(self, numbers, NULL) < 0) || set_due(self, due, NULL) < 0) return -1;
    if (!(clock = PyObject_GetAttrString(module, "monotonic_ns"))) return -1;
    bool real = PyCFunction_Check(clock); /* else a test has put its own in place */
    self->since = 1LL << 62 /* FAR */; self->peak = -1;
    LOCKED(self, Py_XSETREF(self->monotonic_ns, real ? Py_NewRef(clock) : NULL); Py_XSETREF(self->read, clock));
    return 0;
}
static PyObject *reduce(Meter *self, PyObject *Py_UNUSED(none)) {
    PyObject *cut = from_wide(self->cut), *peak = from_wide(self->peak);
    return Py_BuildValue("O(NN)(O{sLsLsNsN})", Py_TYPE(self), get_numbers(self, NULL), get_due(self, NULL), Py_None,
                         "since", self->since, "last", self->last, "cut", cut, "peak", peak);
}
static int traverse(Meter *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self)); Py_VISIT(self->read); Py_VISIT(self->monotonic_ns); Py_VISIT(self->numbers); Py_VISIT(self->odd_due);
    Py_VISIT(self->above); Py_VISIT(self->check);
    return 0;
}
static int clear(Meter *self) {
    Py_CLEAR(self->read); Py_CLEAR(self->monotonic_ns); Py_CLEAR(self->numbers); Py_CLEAR(self->odd_due);
    Py_CLEAR(self->above); Py_CLEAR(self->check);
    return 0;
}
static void dealloc(Meter *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}
#define METHOD(name, function, flags) {name, (PyCFunction)(void (*)(void))function, flags, NULL}
#define MEMBER(of, name, type) {#name, type, offsetof(of, name), 0, NULL}
#define WIDE(name) {#name, (getter)get_wide, (setter)set_wide, NULL, __extension__(void *)offsetof(Meter, name)}
#define PROPERTY(name) {#name, (getter)get_##name, (setter)set_##name, NULL, NULL}
#define SLOT(id, value) {id, __extension__(void *)(value)}
static PyMethodDef methods[] = {
    METHOD("grab", grab, METH_FASTCALL), METHOD("__reduce__", reduce, METH_NOARGS), {0}};
static PyGetSetDef properties[] = {
    PROPERTY(due), PROPERTY(numbers), PROPERTY(above), PROPERTY(check), WIDE(cut), WIDE(peak), {0}};
static PyMemberDef members[] = {
    MEMBER(Meter, read, T_OBJECT_EX), MEMBER(Meter, until, T_LONGLONG), MEMBER(Meter, offset, T_LONGLONG),
    MEMBER(Meter, since, T_LONGLONG), MEMBER(Meter, grabs, T_LONGLONG), MEMBER(Meter, last, T_LONGLONG), {0}};
static PyType_Slot type_slots[] = {
    SLOT(Py_tp_init, init), SLOT(Py_tp_dealloc, dealloc), SLOT(Py_tp_traverse, traverse), SLOT(Py_tp_clear, clear),
    SLOT(Py_tp_methods, methods), SLOT(Py_tp_getset, properties), SLOT(Py_tp_members, members), {0, NULL}};
static PyType_Spec spec = { /* by this name, a pickle can be read where the compiled meter is absent */
    "aiorate._meter.Meter", sizeof(Meter), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, type_slots};

static PyMemberDef check_members[] = {
    MEMBER(LoopCheck, until, T_LONGLONG), MEMBER(LoopCheck, try_until, T_LONGLONG), MEMBER(LoopCheck, thread, T_ULONG), {0}};
static PyType_Slot check_slots[] = {SLOT(Py_tp_members, check_members), {0, NULL}};
static PyType_Spec check_spec = {"aiorate._meter.LoopCheck", sizeof(LoopCheck), 0, Py_TPFLAGS_DEFAULT, check_slots};

static int execute(PyObject *module) {
    PyObject *time = PyImport_ImportModule("time"), *clock = time ? PyObject_GetAttrString(time, "monotonic_ns") : NULL;
    PyObject *type = clock ? PyType_FromModuleAndSpec(module, &spec, NULL) : NULL;
    PyObject *check = type ? PyType_FromModuleAndSpec(module, &check_spec, NULL) : NULL;
    bool done = check && PyModule_AddObjectRef(module, "Meter", type) == 0 && PyModule_AddObjectRef(module, "LoopCheck", check) == 0 &&
                PyModule_AddObjectRef(module, "monotonic_ns", clock) == 0;
    Py_XDECREF(check); Py_XDECREF(type); Py_XDECREF(time); Py_XDECREF(clock);
    return done ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    SLOT(Py_mod_exec, execute),
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "aiorate._cmeter", .m_slots = module_slots};

PyMODINIT_FUNC PyInit__cmeter(void) { return PyModuleDef_Init(&definition); }
