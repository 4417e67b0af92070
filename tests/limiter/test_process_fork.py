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
    """No child finds the lock held, or half of a decision."""
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


def test_a_forked_loop_goes_on_with_its_own_line() -> None:
    """A child that is forked within a coroutine does not have the parent's waiter."""
    printed = program("""
limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process")


async def ask():
    return await limiter.acquire()


async def main():
    await limiter.acquire()
    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    in_child(lambda: print(limiter.statistics().waiting, limiter.acquire_blocking() >= 0) if not _loop() else None)
    print((await task) > 0, limiter.statistics().granted)


def _loop():
    asyncio._set_running_loop(None)


asyncio.run(main())
""")

    assert "0 True\nTrue 2\n" == printed


def test_a_place_left_during_a_fork_is_free_after_it() -> None:
    """Leaving does not block, and no task gets in during a fork: without a check afterwards the next would wait beside a free place."""
    printed = program("""
def leave():
    thread = threading.Thread(target=left.pop())
    thread.start()
    thread.join()
left = []
os.register_at_fork(after_in_parent=leave)  # before the limiters' own
async def main():
    limiter = aiorate.Limiter(aiorate.TokenBucket("100/s", burst=2), scope="process", max_concurrency=1)
    await limiter._enter(1)
    second = asyncio.create_task(limiter._enter(1))
    await asyncio.sleep(0)
    left.append(limiter._leave)
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    async with asyncio.timeout(20):
        await second
    print("inside")
asyncio.run(main())
""")

    assert "inside\n" == printed
