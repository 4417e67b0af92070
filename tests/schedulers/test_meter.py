"""What a meter promises, in Python and compiled."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aiorate.meter
from aiorate.meter import ENDLESS, FAR, NO_LINE, PureMeter

HOUR = 3_600 * 10**9
COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda meter: pickle.loads(pickle.dumps(meter))]


def opened(kind: type[PureMeter], numbers: tuple[int, int, float, int] = (1, 10, ENDLESS, 0), due: int | None = 0) -> PureMeter:
    """An open meter, whose clock says 1000."""
    meter = kind(numbers, due)
    meter.until = meter.try_until = FAR
    meter.read = lambda: 1000
    return meter


@pytest.mark.parametrize("number", [1 << 125, 1 << 200, -(1 << 200)])
def test_a_number_that_is_too_large_shuts_the_compiled_meter(compiled: type[PureMeter], number: int) -> None:
    meter = opened(compiled, due=number)

    assert (number, False) == (meter.due, meter.grab())
    assert number == copy.copy(meter).due

    meter.due = 0
    assert meter.grab()


@pytest.mark.parametrize("numbers", [(1 << 62, 1, 0, 0), (1, 1 << 125, 0, 0), (1, 1, 1 << 125, 0), (1, 1, 1 << 130, 1 << 129)])
def test_a_rate_that_is_too_large_shuts_the_compiled_meter(compiled: type[PureMeter], numbers: tuple[int, int, float, int]) -> None:
    meter = opened(compiled, numbers)

    assert (numbers, False) == (meter.numbers, meter.grab())
    assert numbers == copy.copy(meter).numbers

    meter.numbers = (1, 1, ENDLESS, 0)
    assert meter.grab()


def test_the_largest_numbers_that_fit_do_not_overflow(compiled: type[PureMeter]) -> None:
    """From the first instant that a clock can show to the last, at the largest unit and the largest cost."""
    unit, most = 2**62 - 1, 2**125 - 1
    for kept, due in [(0, -most), (most, -most)]:
        meter = opened(compiled, (unit, 1, 0, kept), due)
        meter.read = lambda: FAR - 1

        assert meter.grab()
        assert ((FAR - 1) * unit - kept + 1, (FAR - 1, (FAR - 1) * unit - kept - due, max(kept, 0))) == (meter.due, meter.collect())

    meter = opened(compiled, (unit, most, ENDLESS, 0), 0)
    assert (True, False) == (meter.grab(), meter.grab())
    assert most == meter.due


def test_a_next_permit_that_is_too_far_is_left_to_the_scheduler(compiled: type[PureMeter]) -> None:
    meter = opened(compiled, (2**62 - 1, 2**125 - 1, ENDLESS, 0), 2**123)
    meter.read = lambda: FAR - 1

    assert (False, 2**123) == (meter.grab(), meter.due)


def test_a_loss_that_is_too_large_is_left_to_the_scheduler(compiled: type[PureMeter]) -> None:
    meter = opened(compiled, (2**62 - 1, 1, 0, 0))
    meter.read = lambda: FAR - 1
    taken = 0
    for _ in range(12):
        meter.due = -(2**125) + 1
        taken += meter.grab()

    assert 0 < taken == meter.grabs < 12
    assert taken * ((FAR - 1) * (2**62 - 1) + 2**125 - 1) == meter.collect()[1] < 2**127


def test_the_clock_is_asked_only_while_the_meter_is_open(kind: type[PureMeter]) -> None:
    asked = []
    meter = opened(kind)
    meter.read = lambda: asked.append(1) or 1000  # type: ignore[func-returns-value]

    meter.until = 0
    assert (False, []) == (meter.grab(), asked)

    assert (True, [1]) == (meter.grab(True), asked)


def test_an_error_of_the_clock_reaches_the_caller(kind: type[PureMeter]) -> None:
    meter = opened(kind)
    meter.read = lambda: 1 // 0

    with pytest.raises(ZeroDivisionError):
        meter.grab()

    assert (0, 0, opened(kind).collect()) == (meter.due, meter.grabs, meter.collect())


def test_a_clock_that_tells_no_number_is_an_error(kind: type[PureMeter]) -> None:
    meter = opened(kind)
    meter.read = lambda: None  # type: ignore[assignment, return-value]

    with pytest.raises(TypeError, match="NoneType"):
        meter.grab()

    assert (0, 0) == (meter.due, meter.grabs)


@pytest.mark.parametrize("reading", [1 << 63, 1 << 130, -(1 << 63) - 1])
def test_an_instant_of_more_than_64_bits_is_left_to_the_scheduler(compiled: type[PureMeter], reading: int) -> None:
    meter = opened(compiled, due=-(1 << 100))
    meter.until = FAR
    meter.read = lambda: reading

    assert not meter.grab()


def test_a_clock_may_change_the_meter_that_asks_it(kind: type[PureMeter]) -> None:
    """A virtual clock may run callbacks. What they do to the meter counts, and so does a change of another thread."""
    meter = opened(kind)

    def read() -> int:
        meter.due = 1001
        return 1000

    meter.read = read
    assert (False, 1001) == (meter.grab(), meter.due)


def test_a_meter_goes_by_the_monotonic_clock_at_first(kind: type[PureMeter]) -> None:
    from time import monotonic_ns

    meter = kind((1, 1, 0, 0), 0)
    meter.until = FAR

    before, taken, after = monotonic_ns(), meter.grab(), monotonic_ns()

    assert (True, monotonic_ns) == (taken, meter.read)
    assert before <= meter.last <= after

    meter.offset = -HOUR
    meter.grab()
    assert before + HOUR <= meter.last


def test_a_new_meter_is_shut_and_no_straight_line(kind: type[PureMeter]) -> None:
    meter = kind()

    assert (NO_LINE, None, False) == (meter.numbers, meter.due, meter.grab())
    meter.due, meter.until, meter.since = 0, FAR, -1
    assert not meter.grab()


def test_a_line_that_keeps_less_than_nothing_is_no_line(kind: type[PureMeter]) -> None:
    meter = opened(kind, (1, 1, 5, -1))

    assert (False, 0) == (meter.grab(), meter.due)


def test_a_copy_of_a_meter_is_shut(kind: type[PureMeter]) -> None:
    """The copy of a scheduler belongs to no limiter yet."""
    meter = opened(kind)
    meter.since = 5
    meter.grab()

    for twin in COPIES:
        copied = twin(meter)

        assert type(meter) is type(copied)
        assert (meter.numbers, meter.due) == (copied.numbers, copied.due)
        assert (0, 0, FAR, 0, None) == (copied.until, copied.try_until, copied.since, copied.grabs, copied.last)
        assert not copied.grab()


def test_a_pickle_names_no_compiled_module(compiled: type[PureMeter]) -> None:
    """So it can be loaded where the compiled meter is absent: there the name is that of the other."""
    pickled = pickle.dumps(opened(compiled, due=7))

    assert b"_meter" not in pickled
    aiorate.meter.Meter = PureMeter  # type: ignore[misc]  # the fixture puts it back
    loaded = pickle.loads(pickled)
    assert (PureMeter, 7) == (type(loaded), loaded.due)


def test_a_meter_can_be_subclassed(kind: type[PureMeter]) -> None:
    class Twice(kind):  # type: ignore[misc, valid-type]
        def grab(self, trying: bool = False) -> bool:
            return super().grab(trying) and super().grab(trying)

    meter = opened(Twice)
    meter.name = "a"

    assert (True, 20) == (meter.grab(), meter.due)
    assert type(copy.deepcopy(meter)) is Twice


def test_wrong_arguments_are_errors(kind: type[PureMeter]) -> None:
    meter = opened(kind)
    for wrong in [lambda: meter.grab(1, 2), lambda: kind(1, 2, 3), lambda: meter.collect(1)]:  # type: ignore[call-arg, arg-type]
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("numbers", [(1, 1, ENDLESS), (1, 1, ENDLESS, 0, 0), None])
def test_numbers_other_than_four_are_refused(compiled: type[PureMeter], numbers: Any) -> None:
    meter = opened(compiled)

    with pytest.raises(TypeError):
        meter.numbers = numbers

    assert ((1, 10, ENDLESS, 0), True) == (meter.numbers, meter.grab())


def test_attributes_of_the_compiled_meter_can_be_deleted(compiled: type[PureMeter]) -> None:
    """Nobody does, and it must not crash the interpreter."""
    meter = opened(compiled)

    del meter.read
    with pytest.raises(AttributeError):
        meter.grab()
    del meter.due
    assert meter.due is None
    for name in ("numbers", "until", "grabs"):
        with pytest.raises(TypeError):
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
    numbers, due, reading = (1, 10, 10**30, 0), 10**50, 10**15
    parts = [numbers, due, reading, compiled]
    references = [sys.getrefcount(part) for part in parts]

    for _ in range(100):
        meter = opened(compiled, numbers, due)
        meter.read = lambda: reading
        meter.grab()
        meter.due = 0
        meter.grab()
        meter.numbers, meter.due = numbers, due
        meter.collect()
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
def test_threads_that_share_a_compiled_meter_lose_no_permit(compiled: type[PureMeter]) -> None:
    """A grab by the monotonic clock is one step."""
    meter = compiled((1, 3, ENDLESS, 0), 0)
    meter.until = FAR
    taken: list[int] = []

    def hammer() -> None:
        taken.append(sum(meter.grab() for _ in range(50_000)))

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken) == meter.grabs == 200_000
    assert 3 * 200_000 == meter.due
