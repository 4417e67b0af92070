"""The table of features in docs/comparison.md: what a program can try is tried, with the libraries that are installed."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import importlib.util
import json
import pkgutil
import re
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from inspect import signature
from pathlib import Path

import pytest
import trio
from helpers.scripts import script

import aiorate
from aiorate.testing import VirtualLoop

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "comparison.md").read_text(encoding="utf-8")
MODULES = {
    "aiorate": "aiorate",
    "aiolimiter": "aiolimiter",
    "asynciolimiter": "asynciolimiter",
    "pyrate-limiter": "pyrate_limiter",
    "limits": "limits",
    "throttled-py": "throttled",
    "asyncio-throttle": "asyncio_throttle",
}
REAL = pytest.mark.asyncio(loop_factories=["asyncio"])
Acquire = Callable[..., Awaitable[object]]


def table() -> dict[str, dict[str, str]]:
    """The cells of the table of features, by row and library."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.partition("## What they cost")[0].splitlines() if line.startswith("| ")]
    libraries = lines[0][-len(MODULES) :]
    return {row[0]: dict(zip(libraries, row[1:], strict=True)) for row in lines[1:]}


CELLS = table()


def says_yes(row: str, library: str) -> bool:
    """Whether the page says that the library can do it: yes, or what it has."""
    return CELLS[row][library] not in ("no", "-")


def limiter(library: str, rate: int, burst: int) -> Acquire:
    """A bucket of that library: its call that waits, which takes a number of permits if the library has that."""
    import aiolimiter
    import asyncio_throttle
    import asynciolimiter
    import pyrate_limiter
    from limits import RateLimitItemPerSecond
    from limits.aio import storage, strategies
    from throttled.asyncio import MemoryStore, RateLimiterType, Throttled, per_duration

    if library == "aiorate":
        return aiorate.Limiter(aiorate.TokenBucket(f"{rate}/s", burst)).acquire
    if library == "aiolimiter":
        return aiolimiter.AsyncLimiter(burst, burst / rate).acquire
    if library == "asynciolimiter":
        return asynciolimiter.LeakyBucketLimiter(rate, capacity=burst).wait
    if library == "pyrate-limiter":
        made = pyrate_limiter.Limiter(pyrate_limiter.Rate(burst, 1000 * burst // rate))
        return lambda permits=1: made.try_acquire_async("x", weight=permits)
    if library == "limits":
        window = strategies.MovingWindowRateLimiter(storage.MemoryStorage())
        return lambda permits=1: window.hit(RateLimitItemPerSecond(rate), "x", cost=permits)
    if library == "throttled-py":
        quota = per_duration(timedelta(seconds=1), rate, burst)
        throttled = Throttled(key="x", using=RateLimiterType.GCRA.value, quota=quota, store=MemoryStore(), timeout=100)
        return lambda permits=1: throttled.limit(cost=permits)
    return asyncio_throttle.Throttler(burst, burst / rate, retry_interval=0.001).acquire


@pytest.mark.parametrize("library", MODULES)
@REAL
async def test_waiting_or_refusing(library: str) -> None:
    """Twelve requests at 100 per second after a burst of ten take at least 10 ms, or are refused."""
    acquire = limiter(library, 100, 10)
    began = time.perf_counter()

    answers = [await acquire() for _ in range(12)]

    waited = time.perf_counter() - began >= 0.009
    assert says_yes("a request waits for its permit", library) is (waited and answers[-1] is not False)


@pytest.mark.parametrize("library", MODULES)
@REAL
async def test_several_permits_or_one(library: str) -> None:
    """A call with a number is accepted, or a TypeError."""
    try:
        await limiter(library, 100, 10)(2)
        several = True
    except TypeError:
        several = False

    assert says_yes("several permits for one request", library) is several


async def first_served(acquire: Acquire) -> int:
    """The size of the request that is served first: one for sixteen permits comes first, and then thirty for one each."""
    served = []

    async def request(permits: int) -> None:
        await acquire(permits)
        served.append(permits)

    await acquire(16)
    large = asyncio.create_task(request(16))
    await asyncio.sleep(0)
    await asyncio.gather(large, *(request(1) for _ in range(30)))
    return served[0]


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("library", ["aiorate", "aiolimiter"])
async def test_small_requests_overtake_or_do_not(library: str) -> None:
    """By the clock of the loop."""
    first = await first_served(limiter(library, 128, 16))

    assert says_yes("a large request is not overtaken by small ones", library) is (first == 16)


@REAL
async def test_pyrate_limiter_serves_a_large_request_in_order() -> None:
    """It has its own clock."""
    first = await first_served(limiter("pyrate-limiter", 128, 16))

    assert says_yes("a large request is not overtaken by small ones", "pyrate-limiter") is (first == 16)


@pytest.mark.parametrize("library", [name for name in MODULES if CELLS["a cancelled task loses no permit"][name] != "-"])
def test_cancellation_loses_permits_or_none(library: str) -> None:
    """As the benchmarks measured."""
    tables = script("make_tables")
    lost = tables.measured("cancelling", "when granted: lost", tables.COMPARED[library][0])

    assert says_yes("a cancelled task loses no permit", library) is (lost < 0.1)


LONG = "a wait that would be too long is refused at once"


@REAL
async def test_two_libraries_refuse_a_long_wait_at_once() -> None:
    """The wait would be an hour, ten minutes are allowed, and the test takes none."""
    from throttled.asyncio import MemoryStore, Throttled, per_hour

    ours, throttled = aiorate.Limiter("1/h"), Throttled(key="x", quota=per_hour(1, 1), store=MemoryStore(), timeout=600)
    await ours.acquire()
    await throttled.limit()

    async with asyncio.timeout(300):
        with pytest.raises(aiorate.WaitTooLong):
            await ours.acquire(max_wait=600)
        assert (await throttled.limit()).limited

    assert ["aiorate", "throttled-py"] == [library for library in MODULES if says_yes(LONG, library)]


@REAL
async def test_pyrate_limiter_waits_until_the_timeout_is_over() -> None:
    """It says no only then."""
    import pyrate_limiter

    pyrate = pyrate_limiter.Limiter(pyrate_limiter.Rate(1, 3_600_000))
    await pyrate.try_acquire_async("x")
    began = time.perf_counter()

    granted = await pyrate.try_acquire_async("x", timeout=0.1)

    assert not granted
    assert time.perf_counter() - began >= 0.09


@pytest.mark.parametrize("library", MODULES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines that never ran
def test_trio_runs_it_or_fails(library: str) -> None:
    """Three requests, of which the last waits."""

    async def main() -> None:
        acquire = limiter(library, 100, 2)
        with trio.fail_after(20):
            for _ in range(3):
                await acquire()

    try:
        trio.run(main)
        runs = True
    except (RuntimeError, AttributeError):
        runs = False
    gc.collect()  # here, where a coroutine may never have run

    assert says_yes("trio", library) is runs


def submodules(library: str) -> str:
    """The names of all modules of the library."""
    spec = importlib.util.find_spec(MODULES[library])
    assert spec is not None
    return " ".join(found.name for found in pkgutil.walk_packages(spec.submodule_search_locations or [], f"{MODULES[library]}."))


@pytest.mark.parametrize("library", MODULES)
@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("several processes, through Redis", r"redis"),
        ("OpenTelemetry", r"\.otel\b"),
        ("adapters for HTTP clients", r"httpx|aiohttp|requests_limiter|\.http\b"),
        ("adapters for servers", r"asgi|fastapi|flask|starlette"),
    ],
)
def test_modules_exist_where_the_table_says_so(row: str, names: str, library: str) -> None:
    """A library that has it has a module for it, and one that has not has none."""
    assert says_yes(row, library) is bool(re.search(names, submodules(library)))


@pytest.mark.parametrize("library", MODULES)
def test_types_are_marked_where_the_table_says_so(library: str) -> None:
    """The marker that type checkers look for."""
    spec = importlib.util.find_spec(MODULES[library])
    assert spec is not None

    marked = any(Path(folder, "py.typed").exists() for folder in spec.submodule_search_locations or [])

    assert says_yes("types (`py.typed`)", library) is marked


@pytest.mark.parametrize("library", MODULES)
def test_how_many_packages_it_needs(library: str) -> None:
    """Without extras, in the version of which the page speaks."""
    needed = [name for name in importlib.metadata.requires(library) or [] if "extra ==" not in name]
    other_version = library != "aiorate" and f"{library} {importlib.metadata.version(library)}" not in PAGE

    assert other_version or CELLS["packages that it needs directly"][library] == str(len(needed))


@pytest.mark.parametrize("library", [name for name in MODULES if name != "aiorate"])
def test_the_page_names_the_versions_that_were_measured(library: str) -> None:
    """What is said of another version may be wrong."""
    runs = json.loads((DOCS / "benchmarks" / "benchmarks.json").read_text(encoding="utf-8"))["runs"]

    assert {f"{library} {run['versions'][library]}" in PAGE for run in runs} == {True}


def test_every_row_has_a_cell_for_every_library() -> None:
    """And aiorate none that says no."""
    assert all(set(cells) == set(MODULES) for cells in CELLS.values())
    assert [] == [row for row, cells in CELLS.items() if cells["aiorate"] in ("no", "-")]
    assert len(CELLS) >= 15


# What the page says of single libraries.


def test_asynciolimiter_hangs_in_a_second_loop() -> None:
    """After a first one that ended while the limiter's timer was set."""
    import asynciolimiter

    limiter = asynciolimiter.StrictLimiter(5)

    async def three() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(limiter.wait() for _ in range(3)))

    with asyncio.Runner(loop_factory=VirtualLoop) as first:
        first.run(three())

    with asyncio.Runner(loop_factory=VirtualLoop) as second, pytest.raises(TimeoutError):
        second.run(three())


def test_pyrate_limiter_makes_each_wait_longer() -> None:
    """By 50 ms and a millisecond, unless it is told otherwise."""
    import pyrate_limiter

    assert 50 == signature(pyrate_limiter.Limiter).parameters["buffer_ms"].default


def test_periods_of_throttled_are_whole_seconds() -> None:
    """Half a second fails, and the rest of another is cut off."""
    from throttled import per_duration

    with pytest.raises(ZeroDivisionError):
        per_duration(timedelta(seconds=0.5), 10, 10)

    assert 1 == per_duration(timedelta(seconds=1.5), 10, 10).period_sec


def test_a_plain_rate_holds_two_permits_after_an_idle_time() -> None:
    """So its fullest second has one grant more than the rate, as the figure of 1.02 says. A window has none."""

    async def fullest(limiter: aiorate.Limiter) -> int:
        await limiter.acquire()
        await asyncio.sleep(2)
        loop, began = asyncio.get_running_loop(), list[float]()

        async def request() -> None:
            await limiter.acquire()
            began.append(loop.time())

        await asyncio.gather(*(request() for _ in range(200)))
        return max(sum(first <= other < first + 0.995 for other in began) for first in began)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert 51 == runner.run(fullest(aiorate.Limiter("50/s", catch_up=0)))
        assert 50 == runner.run(fullest(aiorate.Limiter(aiorate.SlidingWindow("50/s"))))
