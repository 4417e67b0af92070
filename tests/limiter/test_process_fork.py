"""A process-wide limiter after a fork: the child keeps the budget, without the parent's threads."""

from __future__ import annotations

from helpers.forks import program
from helpers.platforms import needs_fork

pytestmark = needs_fork


def test_the_child_has_the_budget_and_an_empty_line() -> None:
    """In the parent two threads wait and the timekeeper's thread sleeps; none of them exists in the child."""
    printed = program("""
limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), scope="process", max_waiting=2, max_concurrency=1)
assert limiter.try_acquire(4)
waiting = [threading.Thread(target=limiter.acquire_blocking, args=(10,)) for _ in range(2)]
for thread in waiting:
    thread.start()
in_line(limiter, 2)
def child():
    print(limiter.statistics().waiting, limiter.try_acquire(3), limiter.try_acquire(3), limiter.try_acquire())
    limiter.set_rate("1000/s")
    limiter.acquire_blocking()
    asyncio.run(inside())
    print("served", limiter.statistics().waiting)
async def inside():
    async with limiter:
        pass
in_child(child)
print(limiter.statistics().waiting, limiter.delay(1) > 3600)
limiter.set_rate("100000/s")
for thread in waiting:
    thread.join()
print(limiter.statistics().granted)
""")

    assert "0 True True False\nserved 0\n2 True\n24\n" == printed


def test_a_fork_waits_for_the_decisions_of_other_threads() -> None:
    printed = program("""
limiter = aiorate.Limiter("1000000/s", scope="process")
over = False
def work():
    while not over:
        limiter.acquire_blocking()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(20):
    in_child(lambda: [limiter.acquire_blocking() for _ in range(10)])
over = True
for thread in threads:
    thread.join()
print("done", limiter.statistics().waiting)
""")

    assert "done 0\n" == printed


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
