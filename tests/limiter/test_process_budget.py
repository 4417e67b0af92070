"""Budgets with `scope="process"`: one line for all loops and threads, and `with budget.reserve(...)` in synchronous code."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import trio
from helpers.driving import LONG
from helpers.forks import program
from helpers.process import EACH_KIND
from helpers.threads import LoopThread, TrioThread, call_in_thread, in_thread, loop_thread

import aiorate
from aiorate import Budget, Limiter, TokenBucket
from aiorate.testing import ManualClock


def made(clock: ManualClock | None = None, **options: Any) -> Budget:
    """Ten requests and a hundred tokens at once, and as many in each second."""
    dimensions: dict[str, Any] = {"requests": TokenBucket("10/s", burst=10), "tokens": TokenBucket("100/s", burst=100)}
    return Budget(scope="process", clock=clock or ManualClock(), **{**dimensions, **options})


def in_line(budget: Budget, count: int) -> None:
    """Return when ``count`` reservations wait."""
    for _ in range(LONG * 1000):
        if budget.waiting == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"{budget.waiting} wait, not {count}")


def blocked(budget: Budget, used: int | None = None, **amounts: Any) -> Future[aiorate.Lease]:
    """A thread that reserves, and settles if ``used`` is given."""

    def reserve() -> aiorate.Lease:
        with budget.reserve(**amounts) as lease:
            if used is not None:
                lease.settle(tokens=used)
        return lease

    return in_thread(reserve)


async def awaited(budget: Budget, **amounts: Any) -> aiorate.Lease:
    async with budget.reserve(**amounts) as lease:
        return lease


def test_a_thread_reserves_settles_and_refunds() -> None:
    """As a coroutine does."""
    budget = made()
    with budget.reserve(tokens=60) as lease:
        assert (9, 40) == (budget.available("requests"), budget.available("tokens"))
        lease.settle(tokens=20)
    assert (9, 80) == (budget.available("requests"), budget.available("tokens"))
    with budget.reserve(tokens=60) as lease:
        lease.refund()

    assert (0.0, None) == (lease.waited, lease.limited_by)
    assert (9, 80) == (budget.available("requests"), budget.available("tokens"))


@EACH_KIND
def test_threads_and_loops_stand_in_one_line(kind: str) -> None:
    """In order of arrival; the same object serves both."""
    clock = ManualClock()
    budget = made(clock)
    with loop_thread(kind) as loop:
        with budget.reserve(tokens=100):
            pass
        first = loop.start(lambda: awaited(budget, tokens=10))
        in_line(budget, 1)
        second = blocked(budget, tokens=10)
        in_line(budget, 2)
        third = loop.start(lambda: awaited(budget, tokens=10))
        in_line(budget, 3)
        for each in (first, second, third):
            clock.advance(0.1)
            lease = each.result(LONG)
            assert "tokens" == lease.limited_by

        assert 0 == budget.waiting
    assert [0.1, 0.2, 0.3] == pytest.approx([each.result(LONG).waited for each in (first, second, third)])


def test_what_a_thread_did_not_use_lets_a_task_move_up() -> None:
    """Settled in one thread, it is granted in another at once."""
    budget = made()
    with LoopThread() as loop, budget.reserve(tokens=100) as lease:
        task = loop.start(lambda: awaited(budget, tokens=50))
        in_line(budget, 1)
        call_in_thread(lambda: lease.settle(tokens=50))

        assert 0.0 == task.result(LONG).waited


def test_of_many_threads_that_settle_one_counts() -> None:
    """The first; the permits come back once."""
    budget = made()
    with budget.reserve(tokens=100) as lease:
        barrier = threading.Barrier(8)

        def settle() -> None:
            barrier.wait(LONG)
            lease.settle(tokens=90)

        for thread in [in_thread(settle) for _ in range(8)]:
            thread.result(LONG)

    assert 10 == budget.available("tokens")
    with pytest.raises(RuntimeError, match="only once"):
        lease.__enter__()


def test_an_error_in_the_block_may_refund() -> None:
    """With on_error="refund"; otherwise the estimate stands."""
    budget = made()
    for on_error, left in (("keep", 50), ("refund", 50)):
        with pytest.raises(ZeroDivisionError), budget.reserve(tokens=50, on_error=on_error):  # type: ignore[arg-type]
            raise ZeroDivisionError
        assert left == budget.available("tokens")


def test_max_wait_and_max_waiting_hold_for_threads() -> None:
    """Refused at once, or in time, and nothing is spent."""
    clock = ManualClock()
    budget = made(clock, max_waiting=1)
    with budget.reserve(tokens=100):
        pass
    with pytest.raises(aiorate.WaitTooLong, match="for tokens"), budget.reserve(tokens=50, max_wait=0.4):
        pass
    late = blocked(budget, tokens=50, max_wait=0.5)
    in_line(budget, 1)
    with pytest.raises(aiorate.LineFull), budget.reserve():
        pass
    call_in_thread(lambda: budget.pause(10))
    clock.advance(1)

    assert isinstance(late.exception(LONG), aiorate.WaitTooLong)
    assert 0 == budget.waiting


def test_closing_fails_the_reservations_of_every_thread() -> None:
    """No thread remains, and leases may still be settled."""
    budget = Budget(tokens=TokenBucket("100/s", burst=100), scope="process", name="a closed budget")
    with budget.reserve(tokens=100) as lease, LoopThread() as loop:
        asked = [blocked(budget, tokens=90), loop.start(lambda: awaited(budget, tokens=90))]
        in_line(budget, 2)
        asyncio.run(budget.aclose())
        for each in asked:
            assert isinstance(each.exception(LONG), aiorate.LimiterClosed)
        lease.settle(tokens=0)

    assert not [thread for thread in threading.enumerate() if thread.name == "aiorate-timekeeper:a closed budget"]
    with pytest.raises(aiorate.LimiterClosed), budget.reserve():
        pass


def test_a_lease_that_is_collected_in_a_thread_stands() -> None:
    """Entered by hand, and never left: the estimate stands, and its receipt is forgotten."""
    budget = made()

    def enter() -> None:
        budget.reserve(tokens=40).__enter__()
        gc.collect()

    call_in_thread(enter)

    assert 60 == budget.available("tokens")
    assert 0 == budget._dispatcher.counters.returnable


@EACH_KIND
def test_a_cancelled_reservation_lets_threads_move_up(kind: str) -> None:
    """It spends nothing."""
    clock = ManualClock()
    budget = made(clock)
    with loop_thread(kind) as loop:
        with budget.reserve(tokens=100):
            pass
        left = loop.start(lambda: awaited(budget, tokens=100))
        in_line(budget, 1)
        behind = blocked(budget, tokens=10)
        in_line(budget, 2)
        loop.call(loop.scope.cancel if isinstance(loop, TrioThread) else loop.task.cancel)
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)
        clock.advance(0.1)

        assert 0.1 == pytest.approx(behind.result(LONG).waited)
    assert 0 == budget._dispatcher.counters.returnable


# Shared limits.


def shared_limiter(clock: ManualClock) -> tuple[Any, list[Budget]]:
    limiter = Limiter(TokenBucket("10/s", burst=10), scope="process", clock=clock)
    return limiter, [made(clock, requests=limiter) for _ in range(2)]


def shared_budget(clock: ManualClock) -> tuple[Any, list[Budget]]:
    team = Budget(requests=TokenBucket("10/s", burst=10), scope="process", clock=clock)
    return team, [made(clock, shared=team) for _ in range(2)]


@pytest.mark.parametrize("shared", [shared_limiter, shared_budget])
def test_budgets_that_share_decide_in_one_section(shared: Callable[[ManualClock], tuple[Any, list[Budget]]]) -> None:
    """Both bounds hold for threads and loops together, and what was not used comes back to both."""
    clock = ManualClock()
    above, (first, second) = shared(clock)
    assert 1 == len({each._dispatcher.section for each in (above, first, second)})
    with first.reserve(requests=8) as lease, LoopThread() as loop:
        task = loop.start(lambda: awaited(second, requests=5))
        in_line(second, 1)
        thread = blocked(second, requests=1)
        in_line(second, 2)
        lease.settle(requests=5)

        assert 0.0 == task.result(LONG).waited
        clock.advance(0.1)
        thread.result(LONG)
    assert 0 == second.waiting


def test_another_scope_is_refused() -> None:
    """In both directions, by an error that says what to write, and nothing is claimed."""
    here, wide = Limiter("1/s"), Limiter("1/s", scope="process")
    with pytest.raises(ValueError, match=r"Budget\(requests\).*with scope='process' too"):
        Budget(requests=here, tokens="1/s", scope="process")
    with pytest.raises(ValueError, match=r"Budget\(requests\).*Create the budget with scope='process'"):
        Budget(requests=wide, tokens="1/s")
    with pytest.raises(ValueError, match=r"Budget\(shared\).*with scope='process' too"):
        Budget(requests="1/s", shared=Budget(requests="1/s"), scope="process")
    with pytest.raises(ValueError, match=r"Budget\(shared\).*Create the budget with scope='process'"):
        Budget(requests="1/s", shared=Budget(requests="1/s", scope="process"))

    Budget(requests=here, tokens="1/s")
    Budget(requests=wide, tokens="1/s", scope="process")


# Misuse.


def test_the_scope_of_a_loop_has_no_plain_with() -> None:
    """The error says what to write, and nothing is spent."""
    budget = Budget(requests=TokenBucket("1/h", burst=1))
    with pytest.raises(RuntimeError, match=r"async with budget.reserve.*scope='process'"), budget.reserve():  # type: ignore[attr-defined]
        pass

    assert 1 == budget.available("requests")


@pytest.mark.parametrize("run", ["asyncio", "trio"])
def test_in_a_thread_whose_loop_runs_it_is_an_error(run: str) -> None:
    """It would block the loop; nothing is spent, and nothing is held."""
    budget = made()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="would block the event loop"), budget.reserve():
            pass
        async with budget.reserve():
            pass

    if run == "trio":
        trio.run(main)
    else:
        asyncio.run(main())
    assert 9 == budget.available("requests")
    assert 0 == budget._dispatcher.counters.returnable


@pytest.mark.parametrize(("scope", "kind"), [("thread", ValueError), (None, TypeError), (1, TypeError)])
def test_an_unknown_scope_is_refused(scope: Any, kind: type[Exception]) -> None:
    """The strategy can still be used for another budget."""
    strategy = TokenBucket("1/s", burst=1)
    with pytest.raises(kind, match=r"Budget\(scope\) must be 'loop' or 'process'"):
        Budget(requests=strategy, scope=scope)

    with Budget(requests=strategy, scope="process").reserve():
        pass


def test_a_fork_while_threads_wait_keeps_the_budget() -> None:
    """The child has what was reserved, and none of the waiters of either line; the parent goes on."""
    printed = program(
        """
def bucket(burst):
    return aiorate.TokenBucket("1/h", burst=burst)


team = aiorate.Budget(tokens=bucket(100), scope="process")
budget = aiorate.Budget(tokens=bucket(80), requests=bucket(10), shared=team, scope="process")
lease = budget.reserve(tokens=80).__enter__()


def reserve():
    with budget.reserve(tokens=20):
        pass


threads = [threading.Thread(target=reserve) for _ in range(2)]
for thread in threads:
    thread.start()
in_line(budget, 2)


def child():
    print(budget.waiting, team.waiting, team.available("tokens"), budget._dispatcher.counters.returnable)
    budget.pause(0.01)
    with budget.reserve(tokens=0) as other:
        print(other.waited > 0)


in_child(child)
print(budget.waiting, team.available("tokens"))
lease.settle(tokens=0)
for thread in threads:
    thread.join()
print(budget.waiting, team.available("tokens"))
"""
    )

    assert "0 0 20 0\nTrue\n2 20\n0 60\n" == printed


def test_a_lowered_estimate_is_told_of_at_once() -> None:
    """Not with the next decision: the lease may never be entered."""
    events: list[aiorate.Event] = []
    budget = Budget(tokens=TokenBucket("10/s", burst=10), scope="process", on_event=events.append)

    budget.reserve(tokens=50)

    assert [("clamped", "tokens", 10)] == [(event.kind, event.key, event.permits) for event in events]
