"""Keys with `scope="process"`: asked by any thread, with one section for all that share."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.forks import program
from helpers.process import EACH_KIND
from helpers.threads import LoopThread, Recorded, call_in_thread, in_thread, loop_thread, waiting

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock


def wide(clock: ManualClock | None = None, rate: str = "10/s", burst: int = 1) -> Limiter:
    return Limiter(TokenBucket(rate, burst=burst), scope="process", clock=clock)


def entered(block: Any) -> float:
    with block as waited:
        assert isinstance(waited, float)
        return waited


# Asking.


@EACH_KIND
def test_threads_and_loops_wait_in_the_line_of_a_key(kind: str) -> None:
    """By each of its calls, in order of arrival; another key does not wait."""
    clock = ManualClock()
    keyed = KeyedLimiter[str](lambda key: wide(clock), scope="process")
    with loop_thread(kind) as loop:
        assert 0.0 == keyed.acquire_blocking("a")
        asked: list[Future[Any]] = [in_thread(lambda: keyed.acquire_blocking("a", max_wait=9))]
        waiting(keyed["a"], 1)
        asked.append(loop.start(lambda: keyed.acquire("a")))
        asked.append(in_thread(lambda: entered(keyed("a"))))
        waiting(keyed["a"], 3)
        assert 0.0 == entered(keyed("b"))
        for _ in range(3):
            clock.advance(0.1)

        assert [0.1, 0.2, 0.3] == pytest.approx(sorted(future.result(LONG) for future in asked))
    assert not keyed.try_acquire("a")


def test_a_shared_limit_holds_for_all_threads() -> None:
    """A busy key delays no other: only its first request stands in the shared line."""
    clock = ManualClock()
    shared = wide(clock, rate="10/s")
    keyed = KeyedLimiter[str](lambda key: wide(clock, burst=10), shared=shared, scope="process")
    assert keyed.try_acquire("busy")
    busy = [in_thread(lambda: keyed.acquire_blocking("busy")) for _ in range(5)]
    waiting(keyed["busy"], 5)
    with LoopThread() as loop:
        other = loop.start(lambda: keyed.acquire("other"))
        waiting(keyed["other"], 1)
        clock.advance(0.1)
        clock.advance(0.1)
        other.result(LONG)
        for _ in range(4):
            clock.advance(0.1)
        for future in busy:
            future.result(LONG)

    assert 7 == shared.statistics().granted
    assert (0, 0) == (shared.statistics().waiting, keyed["busy"].statistics().waiting)


def test_a_family_has_one_section_and_one_timekeeper() -> None:
    """At any depth, however many keys have waiters."""
    orgs = KeyedLimiter[str](lambda org: wide(burst=100), scope="process")
    teams = KeyedLimiter[str](lambda team: wide(burst=100), shared=lambda team: orgs["acme"], scope="process")
    users = KeyedLimiter[str](lambda user: TokenBucket("1/h", 1), shared=lambda user: teams[user[0]], scope="process")
    keys = [f"{team}{number}" for team in "ab" for number in range(5)]
    for key in keys:
        assert users.try_acquire(key)
    asked = [in_thread(lambda key=key: users.acquire_blocking(key)) for key in keys]  # type: ignore[misc]
    for key in keys:
        waiting(users[key], 1)
    limiters = [users[key] for key in keys] + [teams["a"], teams["b"], orgs["acme"]]

    assert 1 == len({limiter._dispatcher.section for limiter in limiters})
    assert 1 == len({id(limiter._dispatcher.loop) for limiter in limiters})
    for key in keys:
        users[key].refund(1)
    for future in asked:
        future.result(LONG)


def test_what_comes_back_reaches_every_level() -> None:
    """A request that a thread gives up, a refund and a charge, from any thread."""
    clock = ManualClock()
    shared = wide(clock, burst=5)
    keyed = KeyedLimiter[str](lambda key: wide(clock, burst=5), shared=shared, scope="process")
    keyed.acquire_blocking("a", 3)
    call_in_thread(lambda: keyed["a"].refund(2))
    assert (4, 4) == (shared.statistics().available, keyed["a"].statistics().available)
    call_in_thread(lambda: keyed["a"].charge(2))
    assert (2, 2) == (shared.statistics().available, keyed["a"].statistics().available)
    with LoopThread() as loop:
        left = loop.start(lambda: keyed.acquire("a", 3))
        waiting(keyed["a"], 1)
        loop.call(loop.task.cancel)
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)

    assert (2, 2) == (shared.statistics().available, keyed["a"].statistics().available)


# Closing, forks, misuse.


def test_closing_fails_the_waiters_of_every_thread_and_key() -> None:
    """No thread remains, and no key is added."""
    keyed = KeyedLimiter[str](lambda key: TokenBucket("1/h", 1), shared=TokenBucket("1/h", 2), scope="process")
    for key in "ab":
        keyed.acquire_blocking(key)
    asked = [in_thread(lambda key=key: keyed.acquire_blocking(key)) for key in "ab"]  # type: ignore[misc]
    for key in "ab":
        waiting(keyed[key], 1)
    asyncio.run(keyed.aclose())

    for future in asked:
        assert isinstance(future.exception(LONG), aiorate.LimiterClosed)
    assert not [thread for thread in threading.enumerate() if thread.name == "aiorate-timekeeper:shared"]
    for call in (lambda: keyed.acquire_blocking("c"), lambda: entered(keyed("c")), lambda: keyed.try_acquire("c")):
        with pytest.raises(aiorate.LimiterClosed, match="KeyedLimiter is closed"):
            call()


def test_a_key_made_while_it_is_closed_is_not_kept() -> None:
    """It would be open for ever."""
    inside, over = threading.Event(), threading.Event()

    def factory(key: str) -> str:
        inside.set()
        assert over.wait(LONG)
        return "10/s"

    keyed = KeyedLimiter[str](factory, scope="process")
    late = in_thread(lambda: keyed.acquire_blocking("a"))
    assert inside.wait(LONG)
    asyncio.run(keyed.aclose())
    over.set()

    assert isinstance(late.exception(LONG), aiorate.LimiterClosed)
    assert 0 == len(keyed)


def test_a_fork_while_threads_wait_and_make_keys() -> None:
    """The child has the keys and their debts, none of the waiters, and makes keys although another thread was making one."""
    printed = program("""
begun, over = threading.Event(), threading.Event()


def factory(key):
    if key == "slow" and not os.environ.get("CHILD"):
        begun.set()
        over.wait(100)
    return aiorate.TokenBucket("1/h", burst=2)


shared = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), scope="process")
keyed = aiorate.KeyedLimiter(factory, shared=shared, scope="process")
keyed.acquire_blocking("a", 2)
threads = [threading.Thread(target=keyed.acquire_blocking, args=(key, 1)) for key in ("a", "a", "slow")]
for thread in threads:
    thread.start()
in_line(keyed["a"], 2)
begun.wait()


def child():
    os.environ["CHILD"] = "yes"
    print(keyed["a"].statistics().waiting, keyed.try_acquire("a"), shared.statistics().available)
    keyed.acquire_blocking("slow", 2)
    print(shared.statistics().available, len(keyed))
    keyed["a"].refund(1)
    keyed.acquire_blocking("a")
    print(keyed["a"].statistics().waiting, shared.statistics().waiting)


in_child(child)
print(keyed["a"].statistics().waiting, shared.statistics().available)
over.set()
for _ in range(2):
    keyed["a"].refund(1)
for thread in threads:
    thread.join()
print(shared.statistics().available)
""")

    assert "0 False 8\n6 2\n0 0\n2 8\n7\n" == printed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KeyedLimiter(lambda key: "1/s", shared=Limiter("1/s"), scope="process"), r"KeyedLimiter\(shared\).*scope='process' too"),
        (lambda: KeyedLimiter(lambda key: Limiter("1/s"), scope="process")["a"], r"for 'a'.*Make one with scope='process'"),
        (
            lambda: KeyedLimiter(lambda key: "1/s", shared=lambda key: Limiter("1/s"), scope="process")["a"],
            r"KeyedLimiter\(shared\) for 'a'.*scope='process' too",
        ),
        (lambda: KeyedLimiter(lambda key: "1/s", shared=wide()), "create the KeyedLimiter with scope='process'"),
        (lambda: KeyedLimiter(lambda key: wide())["a"], "create the KeyedLimiter with scope='process'"),
        (lambda: KeyedLimiter(lambda key: "1/s", shared=lambda key: wide())["a"], "create the KeyedLimiter with scope='process'"),
        (lambda: KeyedBudget(lambda key: Budget(requests="1/s"), scope="process")["a"], r"for 'a'.*Make one with scope='process'"),
        (lambda: KeyedBudget(lambda key: Budget(requests="1/s", scope="process"))["a"], "create the KeyedBudget with scope='process'"),
        (
            lambda: KeyedBudget(lambda key: Budget(requests="1/s"), shared=Budget(requests="1/s"), scope="process"),
            r"KeyedBudget\(shared\).*scope='process' too",
        ),
        (lambda: KeyedLimiter(lambda key: "1/s", scope="thread"), "must be 'loop' or 'process'"),  # type: ignore[arg-type]
    ],
)
def test_another_scope_is_refused(make: Callable[[], Any], words: str) -> None:
    """By an error that says what to write."""
    with pytest.raises(ValueError, match=words):
        make()


def test_a_limiter_in_use_cannot_be_that_of_a_key() -> None:
    """Another thread may be deciding in its section."""
    used = wide()
    assert used.try_acquire()
    keyed = KeyedLimiter[str](lambda key: used, scope="process")
    with pytest.raises(ValueError, match="in use already"):
        keyed["a"]


def test_the_scope_of_a_loop_has_no_synchronous_calls() -> None:
    """The errors say what to write, and no key is made."""
    keyed = KeyedLimiter[str](lambda key: "1/s")
    with pytest.raises(RuntimeError, match=r"KeyedLimiter\(..., scope='process'\)"):
        keyed.acquire_blocking("a")
    assert 0 == len(keyed)
    with pytest.raises(RuntimeError, match="scope='process'"), keyed("a"):
        pass
    with pytest.raises(TypeError, match="a limit for each key"), keyed:
        pass


# Budgets.


@EACH_KIND
def test_budgets_of_keys_serve_threads_and_loops(kind: str) -> None:
    """Each key's line, and the team's bound."""
    clock = ManualClock()

    def budget(burst: int) -> Budget:
        return Budget(tokens=TokenBucket("100/s", burst=burst), scope="process", clock=clock)

    team = budget(100)
    keyed = KeyedBudget[str](lambda key: budget(80), shared=team, scope="process")

    async def reserve() -> float:
        async with keyed.reserve("b", tokens=80) as lease:
            return lease.waited

    with loop_thread(kind) as loop, keyed.reserve("a", tokens=80) as lease:
        late = loop.start(reserve)
        for _ in range(LONG * 1000):
            if keyed["b"].waiting == 1:
                break
            threading.Event().wait(0.001)
        lease.settle(tokens=20)

        assert 0.0 == late.result(LONG)
    assert (0, 0) == (team.available("tokens"), keyed["a"].available("tokens"))
    clock.advance(10)
    del lease
    gc.collect()
    assert 2 == keyed.evict()


def test_a_coroutine_collected_in_a_decision_leaves_every_line() -> None:
    """In the thread that decides about the shared limit at that moment: it waits for no lock, and another key moves up."""
    clock = ManualClock()
    bucket = Recorded("10/s")
    shared = Limiter(bucket, scope="process", clock=clock)
    keyed = KeyedLimiter[str](lambda key: wide(clock, burst=5), shared=shared, scope="process")
    limiters = [keyed[key] for key in "abc"]
    with LoopThread() as thread:

        def abandon() -> None:
            waiters = [limiter.acquire() for limiter in limiters]
            for each in waiters:
                each.send(None)
            bucket.hook = waiters[1].close  # the second to be granted
            clock.advance(0.2)
            waiters[2].close()
            waiters[0].close()

        assert limiters[0].try_acquire()
        thread.call(abandon)

    assert [0, 0, 0, 0] == [len(limiter._dispatcher.line) for limiter in (*limiters, shared)]
    assert [0, 0, 0, 0] == [limiter._dispatcher.counters.returnable for limiter in (*limiters, shared)]
    clock.advance(1)
    assert [True, False] == [keyed.try_acquire("a"), keyed.try_acquire("b")]
