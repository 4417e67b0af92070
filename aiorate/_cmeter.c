/* The compiled meter: does what PureMeter in _meter.py does, several times faster. Optional: it needs a compiler with
   128-bit integers.

   _meter.py says what the attributes mean, and its methods have functions of the same names here; take_one() is the second half of its
   grab(). A number that is too large stays a Python object, and no grab succeeds: the scheduler then takes the permit in Python. With
   the GIL, a grab by time.monotonic_ns is one step; without it, only one thread grabs. */

#include <Python.h>
#include <stdbool.h>
#include <structmember.h>
#if PY_VERSION_HEX < 0x030D0000 /* the names of 3.13 */
typedef _PyTime_t PyTime_t;
#define PyTime_MonotonicRaw(now) (*(now) = _PyTime_GetMonotonicClock(), 0)
#define PyLong_AsNativeBytes(o, to, size, _) (size - _PyLong_AsByteArray((PyLongObject *)o, (unsigned char *)to, size, PY_LITTLE_ENDIAN, 1))
#define PyLong_FromNativeBytes(from, size, _) _PyLong_FromByteArray((unsigned char *)from, size, PY_LITTLE_ENDIAN, 1)
#endif
#define SIGNED Py_ASNATIVEBYTES_NATIVE_ENDIAN /* and -1, the default, is an unsigned buffer */

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
    PyObject *read;         /* NULL shuts the meter */
    PyObject *numbers;      /* the tuple that `line` was made from; NULL: NO_LINE */
    PyObject *odd_due;      /* `due` if it is None or does not fit; else NULL */
    PyObject *above, *check; /* another Meter, and a LoopCheck; NULL or None: there is none */
    struct line {
        wide unit, cost, kept, slack;
        bool straight; /* whether all of them fit, and they are not NO_LINE */
    } line;
    wide due, cut, peak;
    long long until, offset, since, grabs, last;
} Meter;
static PyTypeObject meter_type, check_type;
static PyCFunction monotonic_ns; /* that of time.monotonic_ns: grab() calls the C function behind it */

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
        if (late) return false;
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
    LoopCheck *check = self->check == Py_None ? NULL : (LoopCheck *)self->check;
    Meter *above = self->above == Py_None ? NULL : (Meter *)self->above;
    if (!self->read || (check && !Py_IS_TYPE(check, &check_type)) || (above && !Py_IS_TYPE(above, &meter_type))) return 0;
    long long until = self->until, checked = !check ? LLONG_MAX : trying ? check->try_until : check->until;
    PyTime_t clock;
    wide now = 0;
    if (!until || !checked || (check && check->thread && check->thread != PyThread_get_thread_ident())) return 0;
    if (PyCFunction_CheckExact(self->read) && PyCFunction_GET_FUNCTION(self->read) == monotonic_ns) {
        now = PyTime_MonotonicRaw(&clock) == 0 ? (wide)clock : LLONG_MAX;
    } else {
        PyObject *read = Py_NewRef(self->read), *answer = PyObject_CallNoArgs(read);
        bool fits = answer && to_wide(answer, &now, 125);
        Py_DECREF(read); Py_XDECREF(answer);
        if (!fits) return answer ? 0 : -1;
    }
    if (now >= checked || !take_one(self, now - self->offset, until, above != NULL)) return 0;
    if (!above) return 1;
    Py_INCREF(above);
    int taken = grab_from(above, trying); /* which may run other code, if its clock is in Python */
    Py_DECREF(above);
    return taken == 1 ? take_one(self, now - self->offset, until, false) : taken;
}

static PyObject *grab(Meter *self, PyObject *const *args, Py_ssize_t count) {
    int trying = count ? PyObject_IsTrue(args[0]) : false, taken = trying < 0 ? -1 : grab_from(self, trying);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

static PyObject *get_wide(Meter *self, void *offset) { return from_wide(*(wide *)((char *)self + (size_t)offset)); }
static int set_wide(Meter *self, PyObject *object, void *offset) {
    wide number = 0;
    if (!object || !to_wide(object, &number, 126)) return PyErr_SetString(PyExc_OverflowError, "more than 126 bits."), -1;
    *(wide *)((char *)self + (size_t)offset) = number;
    return 0;
}

static PyObject *get_due(Meter *self, void *Py_UNUSED(closure)) { return self->odd_due ? Py_NewRef(self->odd_due) : from_wide(self->due); }
static int set_due(Meter *self, PyObject *object, void *Py_UNUSED(closure)) {
    Py_XSETREF(self->odd_due, object && to_wide(object, &self->due, 125) ? NULL : Py_NewRef(object ? object : Py_None));
    return 0;
}

static PyObject *get_numbers(Meter *self, void *Py_UNUSED(closure)) {
    return self->numbers ? Py_NewRef(self->numbers) : Py_BuildValue("iid", 1, 1, -Py_HUGE_VAL);
}
static int set_numbers(Meter *self, PyObject *numbers, void *Py_UNUSED(closure)) {
    PyObject *unit, *cost, *kept; /* borrowed from the tuple */
    struct line line = {0};
    if (!numbers || !PyTuple_CheckExact(numbers)) return PyErr_SetString(PyExc_TypeError, "numbers must be a tuple of three."), -1;
    if (!PyArg_ParseTuple(numbers, "OOO:numbers", &unit, &cost, &kept)) return -1;
    bool endless = PyFloat_Check(kept) && PyFloat_AS_DOUBLE(kept) == Py_HUGE_VAL;
    line.straight = to_wide(unit, &line.unit, 62) && to_wide(cost, &line.cost, 125) &&
                    (endless || (to_wide(kept, &line.kept, 125) && line.kept >= 0));
    line.slack = endless ? (wide)1 << 126 : line.kept + line.unit - 1;
    self->line = line;
    Py_XSETREF(self->numbers, Py_NewRef(numbers));
    return 0;
}

static PyObject *new_meter(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names)) {
    Meter *self = (Meter *)type->tp_alloc(type, 0);
    if (self) { self->odd_due = Py_NewRef(Py_None); self->since = 1LL << 62 /* FAR */; self->peak = -1; }
    return (PyObject *)self;
}
static int traverse(Meter *self, visitproc visit, void *arg) {
    Py_VISIT(self->read); Py_VISIT(self->numbers); Py_VISIT(self->odd_due); Py_VISIT(self->above); Py_VISIT(self->check);
    return 0;
}
static int clear(Meter *self) {
    Py_CLEAR(self->read); Py_CLEAR(self->numbers); Py_CLEAR(self->odd_due); Py_CLEAR(self->above); Py_CLEAR(self->check);
    return 0;
}
static void dealloc(Meter *self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_TYPE(self)->tp_free(self);
}
#define MEMBER(of, name, type) {#name, type, offsetof(of, name), 0, NULL}
#define WIDE(name) {#name, (getter)get_wide, (setter)set_wide, NULL, __extension__(void *)offsetof(Meter, name)}
#define PROPERTY(name) {#name, (getter)get_##name, (setter)set_##name, NULL, NULL}
static PyMethodDef methods[] = {{"grab", (PyCFunction)(void (*)(void))grab, METH_FASTCALL, NULL}, {0}};
static PyGetSetDef properties[] = {PROPERTY(due), PROPERTY(numbers), WIDE(cut), WIDE(peak), {0}};
static PyMemberDef members[] = {
    MEMBER(Meter, read, T_OBJECT), MEMBER(Meter, above, T_OBJECT), MEMBER(Meter, check, T_OBJECT), MEMBER(Meter, until, T_LONGLONG),
    MEMBER(Meter, offset, T_LONGLONG), MEMBER(Meter, since, T_LONGLONG), MEMBER(Meter, grabs, T_LONGLONG), MEMBER(Meter, last, T_LONGLONG),
    {0}};
static PyTypeObject meter_type = {
    PyVarObject_HEAD_INIT(NULL, 0) /* by this name, a pickle can be read where the compiled meter is absent */
    .tp_name = "aiorate._meter.Meter", .tp_basicsize = sizeof(Meter), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = new_meter, .tp_dealloc = (destructor)dealloc, .tp_traverse = (traverseproc)traverse, .tp_clear = (inquiry)clear,
    .tp_methods = methods, .tp_getset = properties, .tp_members = members};

static PyMemberDef check_members[] = {
    MEMBER(LoopCheck, until, T_LONGLONG), MEMBER(LoopCheck, try_until, T_LONGLONG), MEMBER(LoopCheck, thread, T_ULONG), {0}};
static PyTypeObject check_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "aiorate._meter.LoopCheck", .tp_basicsize = sizeof(LoopCheck), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew, .tp_members = check_members};

static int execute(PyObject *module) {
    PyObject *time = PyImport_ImportModule("time"), *clock = time ? PyObject_GetAttrString(time, "monotonic_ns") : NULL;
    if (clock && PyCFunction_CheckExact(clock)) monotonic_ns = PyCFunction_GET_FUNCTION(clock); /* else a test has put its own in place */
    Py_XDECREF(time); Py_XDECREF(clock);
    return clock && PyModule_AddType(module, &meter_type) == 0 && PyModule_AddType(module, &check_type) == 0 ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, __extension__(void *)execute},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "aiorate._cmeter", .m_slots = module_slots};

PyMODINIT_FUNC PyInit__cmeter(void) { return PyModuleDef_Init(&definition); }
