"""Keys whose rates are found: what was found lasts while a key is used now and then, and the memory is bounded."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from aiorate import KeyedLimiter, Limiter
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    from aiorate._events import Event

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def searching(clock: ManualClock, **options: Any) -> KeyedLimiter[int]:
    """For each key, a search that begins at 10/s."""
    return KeyedLimiter(lambda key: AdaptiveRate(Limiter("10/s", clock=clock), "1/s", "1000/s"), **options)


def visit(keyed: KeyedLimiter[int], key: int) -> None:
    """One request, which the server refuses: the rate of the key falls below 10/s."""
    limiter = keyed[key]
    assert limiter.try_acquire()
    adaptive = adaptive_of(limiter)
    assert adaptive is not None
    adaptive.throttled(took=0.01)
    assert adaptive.rate.per_second < 10


def test_hosts_that_are_visited_once_are_forgotten() -> None:
    """Five each minute: those of the last ten minutes are kept, or as ``idle`` says, and a few that were not checked yet."""
    table: list[tuple[dict[str, Any], int]] = [({}, 300), ({"idle": 600}, 300), ({"idle": 1}, 20)]
    for options, fewer in table:
        clock = ManualClock()
        keyed = searching(clock, **options)
        most = 0

        for host in range(1_000):
            visit(keyed, host)
            clock.set(clock.now() + MINUTE // 5)
            most = max(most, len(keyed))

        assert most < fewer, options


def test_above_max_keys_a_rate_is_not_kept() -> None:
    clock = ManualClock()
    keyed = searching(clock, max_keys=5)

    for host in range(300):
        visit(keyed, host)
        clock.set(clock.now() + 2 * SECOND)

    assert len(keyed) <= 8


def test_a_host_that_is_used_each_minute_keeps_its_rate() -> None:
    """Beside a hundred others that come in each minute."""
    clock = ManualClock()
    evicted: list[Event] = []
    keyed = searching(clock, on_event=evicted.append)
    visit(keyed, 0)
    found = keyed[0].rate

    for minute in range(20):
        clock.set(clock.now() + MINUTE)
        for host in range(100):
            visit(keyed, 1 + 100 * minute + host)
        assert keyed.try_acquire(0)
        assert keyed[0].rate == found

    assert len(evicted) > 300
    assert 0 not in {event.key for event in evicted}


def test_a_rate_that_was_set_by_hand_is_kept() -> None:
    """As with any other limiter."""
    clock = ManualClock()
    keyed = searching(clock)
    visit(keyed, 0)
    keyed[0].set_rate("5/s")
    visit(keyed, 1)
    clock.set(clock.now() + 60 * MINUTE)

    assert keyed.evict() == 1
    assert list(keyed) == [0]


def test_what_was_found_goes_with_the_key() -> None:
    clock = ManualClock()
    keyed = searching(clock)
    visit(keyed, 0)
    clock.set(clock.now() + MINUTE)
    assert keyed.evict() == 1
    gc.collect()

    again = adaptive_of(keyed[0])

    assert again is not None
    assert again.rate.per_second == 10
