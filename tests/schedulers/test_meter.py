"""What a meter promises, in Python and compiled."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

import pytest
from helpers.compiled import check_of

import aiorate._meter
from aiorate._meter import ENDLESS, FAR, NO_LINE, PureMeter

HOUR = 3_600 * 10**9
COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda meter: pickle.loads(pickle.dumps(meter))]


def opened(kind: type[PureMeter], numbers: tuple[int, int, Any] = (1, 10, ENDLESS), due: int | None = 0) -> PureMeter:
    """An open meter, whose clock says 1000."""
    meter = kind()
    meter.numbers, meter.due, meter.until, meter.read = numbers, due, FAR, lambda: 1000
    return meter


def test_numbers_of_any_size_are_read_by_both_alike(compiled: type[PureMeter]) -> None:
    """All powers of two and their neighbours, of both signs. One that does not fit is kept as it is, and shuts the compiled meter.

    Python has another function to read large numbers from 3.13 on.
    """
    numbers = {sign * 2**bits + off for bits in range(131) for sign in (1, -1) for off in (-1, 0, 1)}
    for name in ("unit", "cost", "kept", "due", "clock"):
        for number in numbers:
            if name == "kept" and number < 0:
                continue
            given = {"unit": 1, "cost": 10, "kept": ENDLESS, "due": 0, "clock": 1000, name: number}
            given["due"] -= 2**100 if name == "clock" else 0
            line = given["unit"], given["cost"], given["kept"]
            meters = [opened(kind, line, given["due"]) for kind in (PureMeter, compiled)]
            for meter in meters:
                meter.read = lambda: given["clock"]  # noqa: B023  # called in this turn of the loop
                assert (line, given["due"]) == (meter.numbers, meter.due) == (copy.copy(meter).numbers, copy.copy(meter).due)

            pure, fast = ((meter.grab(), meter.due, meter.cut, meter.peak) for meter in meters)

            bits = {"unit": 62, "clock": 63}.get(name, 125)
            fits = abs(number) < 2**bits and abs(pure[1]) < 2**125
            assert fast == (pure if fits else (False, given["due"], 0, -1)), (name, number)


def test_the_largest_numbers_that_fit_do_not_overflow(compiled: type[PureMeter]) -> None:
    """From the first instant that a clock can show to the last, at the largest unit and the largest cost."""
    unit, most = 2**62 - 1, 2**125 - 1
    for kept, due in [(0, -most), (most, -most)]:
        meter = opened(compiled, (unit, 1, kept), due)
        meter.read = lambda: FAR - 1
        assert meter.grab()
        cut = (FAR - 1) * unit - kept - due if (FAR - 1) * unit - due - kept >= unit else 0
        assert (due + cut + 1, cut, (FAR - 1) * unit - due - cut) == (meter.due, meter.cut, meter.peak)
    meter = opened(compiled, (unit, most, ENDLESS), 0)
    assert (True, False) == (meter.grab(), meter.grab())
    assert most == meter.due
    meter.due, meter.read = 2**123, lambda: FAR - 1  # the next permit would be too far
    assert (False, 2**123) == (meter.grab(), meter.due)


def test_the_clock_is_asked_only_while_the_meter_is_open(kind: type[PureMeter]) -> None:
    asked = []
    meter = opened(kind)
    meter.read = lambda: asked.append(1) or 1000  # type: ignore[func-returns-value]
    meter.check = check = check_of(kind)
    check.try_until = 1001
    assert (False, []) == (meter.grab(), asked)
    assert (True, [1]) == (meter.grab(True), asked)
    check.until = 1000
    assert (False, [1, 1]) == (meter.grab(), asked)
    check.until = 1001
    assert (True, [1, 1, 1]) == (meter.grab(), asked)
    meter.until = 0
    assert (False, [1, 1, 1]) == (meter.grab(), asked)


def test_a_scheduler_that_is_asked_books_from_a_late_wake_up() -> None:
    asked: list[object] = []
    meter = PureMeter(lambda permits, now, since: asked.append((permits, now, since)) or 990 + 10 * len(asked))  # type: ignore[func-returns-value]
    meter.until, meter.read, meter.offset = FAR, lambda: 1005, 5
    granted = meter.grab()
    meter.since = 997
    assert (True, False, 1) == (granted, meter.grab(), meter.grabs)
    assert [(1, 1000, None), (1, 1000, 997)] == asked


def test_an_error_of_the_clock_reaches_the_caller(kind: type[PureMeter]) -> None:
    meter = opened(kind)
    meter.read = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        meter.grab()
    assert (0, 0, 0, -1) == (meter.due, meter.grabs, meter.cut, meter.peak)


def test_a_clock_may_change_the_meter_that_asks_it(kind: type[PureMeter]) -> None:
    """A virtual clock may run callbacks. What they do to the meter counts, and so does a change of another thread."""
    meter = opened(kind)

    def read() -> int:
        meter.due = 1001
        return 1000

    meter.read = read
    assert (False, 1001) == (meter.grab(), meter.due)


def test_a_meter_goes_by_the_monotonic_clock(kind: type[PureMeter]) -> None:
    meter = opened(kind, (1, 1, 0))
    meter.read = monotonic_ns
    before, taken, after = monotonic_ns(), meter.grab(), monotonic_ns()
    assert taken
    assert before <= meter.last <= after
    meter.offset = -HOUR
    meter.grab()
    assert before + HOUR <= meter.last


def test_a_meter_without_a_straight_line_grants_nothing(kind: type[PureMeter]) -> None:
    meter = kind()
    assert ((1, 1, NO_LINE), None, False) == (meter.numbers, meter.due, meter.grab())
    meter.due, meter.until, meter.since = 0, FAR, -1
    assert not meter.grab()


def test_a_meter_takes_from_all_meters_above_or_from_none(kind: type[PureMeter]) -> None:
    """Each in its own time. The highest refuses, is shut, or is late: the lower ones keep their permits."""
    low, middle, top = meters = [opened(kind, (1, 10, 5), 1000) for _ in range(3)]
    low.above, middle.above = middle, top
    assert (True, [1010] * 3, [1] * 3) == (low.grab(), [each.due for each in meters], [each.grabs for each in meters])
    low.due = middle.due = 1000
    assert (False, [1000, 1000, 1010]) == (low.grab(), [each.due for each in meters])
    top.offset = -10  # its own time is that much ahead
    assert (True, [1010, 1010, 1020]) == (low.grab(True), [each.due for each in meters])
    low.due, middle.due, top.due, top.until = 1000, 1000, 1000, 0
    assert (False, [1000] * 3) == (low.grab(), [each.due for each in meters])
    top.until, middle.due, middle.since = FAR, 900, 910  # it lay idle for too long
    assert (False, 1000) == (low.grab(), top.due)
    middle.since = 903
    assert (True, 910, 1015) == (low.grab(), middle.due, top.due)


def test_what_is_none_of_its_kind_shuts_a_compiled_meter(compiled: type[PureMeter]) -> None:
    for name in ("above", "check"):
        meter = opened(compiled)
        setattr(meter, name, object())
        assert not meter.grab()
        setattr(meter, name, None)
        assert meter.grab()


def test_a_copy_of_a_meter_is_shut(kind: type[PureMeter]) -> None:
    """The copy of a scheduler belongs to no limiter yet."""
    meter = opened(kind)
    meter.since = 5
    meter.grab()
    for twin in COPIES:
        copied = twin(meter)
        assert type(meter) is type(copied)
        assert (meter.numbers, meter.due) == (copied.numbers, copied.due)
        assert (5, meter.last, meter.cut, meter.peak) == (copied.since, copied.last, copied.cut, copied.peak)
        assert (0, None, 0) == (copied.until, copied.check, copied.grabs)
        assert not copied.grab()


def test_a_pickle_names_no_compiled_module(compiled: type[PureMeter]) -> None:
    """So it can be loaded where the compiled meter is absent: there the name is that of the other."""
    pickled = pickle.dumps(opened(compiled, due=7))
    assert b"_cmeter" not in pickled
    aiorate._meter.Meter = PureMeter  # type: ignore[misc]  # the fixture puts it back
    loaded = pickle.loads(pickled)
    assert (PureMeter, 7) == (type(loaded), loaded.due)


def test_numbers_other_than_a_tuple_of_three_are_refused(compiled: type[PureMeter]) -> None:
    """Subclasses too: one may say that it is longer or shorter than it is."""

    class Tuple(tuple):  # type: ignore[type-arg]
        __slots__ = ()

        def __len__(self) -> int:
            return 3

    meter = opened(compiled)
    for numbers in [(1, 1), (1, 1, ENDLESS, 0), None, [1, 1, ENDLESS], Tuple(), Tuple((1, 1, ENDLESS))]:
        with pytest.raises(TypeError):
            meter.numbers = numbers  # type: ignore[assignment]

    assert ((1, 10, ENDLESS), True) == (meter.numbers, meter.grab())


def test_attributes_of_the_compiled_meter_can_be_deleted(compiled: type[PureMeter]) -> None:
    """Nobody does, and it must not crash the interpreter."""
    meter = opened(compiled)
    del meter.read
    assert not meter.grab()
    del meter.due
    assert meter.due is None
    for name in ("numbers", "until", "grabs", "cut"):
        with pytest.raises((TypeError, OverflowError)):
            delattr(meter, name)
    assert not compiled.__new__(compiled).grab()


def test_a_cycle_through_the_clock_is_collected(kind: type[PureMeter]) -> None:
    class Clock:
        def read(self) -> int:
            return 1000

    clock = Clock()
    gone = weakref.ref(clock)
    clock.meter = meter = opened(kind)  # type: ignore[attr-defined]
    meter.read = clock.read
    assert meter.grab()

    del clock, meter
    gc.collect()

    assert gone() is None


def test_many_meters_leave_nothing_behind(compiled: type[PureMeter]) -> None:
    numbers, due, reading = (1, 10, 10**30), 10**50, 10**15
    parts = [numbers, due, reading, compiled]
    references = [sys.getrefcount(part) for part in parts]
    for _ in range(100):
        meter = opened(compiled, numbers, due)
        meter.read = lambda: reading
        meter.grab()
        meter.due = 0
        meter.grab()
        meter.numbers, meter.due = numbers, due
        copy.copy(meter)
    del meter
    assert references == [sys.getrefcount(part) for part in parts]


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the GIL, one thread has the meter")
def test_threads_that_share_a_compiled_meter_lose_no_permit(compiled: type[PureMeter]) -> None:
    meter = opened(compiled, (1, 3, ENDLESS))
    meter.read = monotonic_ns
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(sum(meter.grab() for _ in range(20_000)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == meter.grabs == 80_000
    assert 3 * 80_000 == meter.due
