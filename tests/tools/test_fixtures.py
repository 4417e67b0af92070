"""The fixtures for users' tests, in real runs of pytest."""

from __future__ import annotations

import anyio._backends._asyncio
import anyio._backends._trio  # noqa: F401  # pytester forgets what its runs import, and these must not be there twice
import pytest

pytest_plugins = ["pytester"]

CONFTEST = 'import aiorate.testing._fixtures\npytest_plugins = ["aiorate.testing"]\n'  # which may be imported before
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers = trio\nfilterwarnings = error\n"
HEAD = """
import asyncio, gc, weakref
import anyio, pytest, pytest_asyncio
from trio.testing import MockClock
from aiorate import KeyedLimiter, Limiter
from aiorate.testing import VirtualLoop

limiter = Limiter("1/min")

@pytest.fixture(autouse=True)
def fresh(reset_limiters):
    reset_limiters(limiter)

async def an_hour():
    for _ in range(61):
        await limiter.acquire()
    return asyncio.get_running_loop().time()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder of tests that names the fixtures."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini(INI)
    return pytester


def run(project: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(HEAD + tests)
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_a_plain_test_runs_its_coroutines_in_virtual_time(project: pytest.Pytester) -> None:
    """Each test has a new loop, which begins at 0, and leaves no task and no open loop behind."""
    tests = """
async def leave_a_task():
    return asyncio.ensure_future(asyncio.sleep(1e9))
def test_an_hour(virtual_loop):
    global loop, task
    assert virtual_loop.run_until_complete(an_hour()) == 3600
    loop, task = virtual_loop, virtual_loop.run_until_complete(leave_a_task())
def test_again(virtual_loop):
    assert loop.is_closed() and task.cancelled() and virtual_loop.time() == 0
    virtual_loop.close()
"""
    run(project, tests).assert_outcomes(passed=2)


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_tests_of_pytest_asyncio_run_in_virtual_time(project: pytest.Pytester, mode: str) -> None:
    """Those that ask for it by an argument, by usefixtures or through another fixture, with their fixtures, at any scope."""
    tests = """
@pytest_asyncio.fixture
async def started():
    yield asyncio.get_running_loop()

@pytest.fixture
def patient(virtual_loop): pass

@pytest.mark.asyncio
async def test_argument(virtual_loop, started, request):
    assert asyncio.get_running_loop() is virtual_loop is started is request.getfixturevalue("virtual_loop")
    assert await an_hour() == 3600

@pytest.mark.asyncio
@pytest.mark.usefixtures("virtual_loop")
async def test_usefixtures(): assert await an_hour() == 3600

@pytest.mark.asyncio
async def test_through_another_fixture(patient): assert await an_hour() == 3600

@pytest.mark.asyncio
async def test_other_tests_do_not():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
    assert await limiter.acquire() == 0.0
"""
    for scope in ("class", "module", "package", "session"):
        tests += f"""
@pytest.mark.asyncio(loop_scope="{scope}")
class Test_{scope}:
    async def test_first(self, virtual_loop, started):
        assert asyncio.get_running_loop() is virtual_loop is not started
        type(self).loop = virtual_loop

    async def test_second(self, virtual_loop): assert asyncio.get_running_loop() is virtual_loop is self.loop
"""
    if mode == "auto":  # and the loops that a project chose are kept
        tests += "\nasync def test_auto_mode(virtual_loop): assert await an_hour() == 3600\n"
        tests += "\nasync def test_kept(): assert type(asyncio.get_running_loop()).__name__ == 'Ours'\n"
        hook = "def pytest_asyncio_loop_factories(config, item): return {'asyncio': Ours}"
        project.makeconftest(f"{CONFTEST}\nimport asyncio\nclass Ours(asyncio.SelectorEventLoop): pass\n{hook}\n")
    run(project, tests, f"--asyncio-mode={mode}").assert_outcomes(passed=14 if mode == "auto" else 12)


def test_tests_of_anyio_run_in_virtual_time(project: pytest.Pytester) -> None:
    """Under asyncio and trio, with the loop or the clock that the fixture anyio_backend chooses."""
    tests = """
BACKENDS = [("asyncio", {"loop_factory": VirtualLoop}), ("trio", {"clock": MockClock(autojump_threshold=0)})]
@pytest.fixture(params=BACKENDS)
def anyio_backend(request): return request.param
@pytest.mark.anyio
async def test_an_hour(anyio_backend_name, request):
    begun = anyio.current_time()
    for _ in range(61):
        await limiter.acquire()
    assert anyio.current_time() == begun + 3600
"""
    run(project, tests).assert_outcomes(passed=2)


def test_limits_are_reset_before_each_test(project: pytest.Pytester) -> None:
    """Whichever loop used them last. The fixture keeps none of them alive."""
    tests = """
keyed = KeyedLimiter(lambda key: "1/min")
@pytest.fixture(autouse=True)
def reset(reset_limiters):
    global gone
    reset_limiters(keyed, own := Limiter("1/s"))
    gone = weakref.ref(own)
    with pytest.raises(TypeError, match="takes limiters"):
        reset_limiters([limiter])
@pytest.mark.parametrize("kind", ["virtual", "plain"])
def test_plain(kind, request):
    gc.collect()
    loop = request.getfixturevalue("virtual_loop") if kind == "virtual" else asyncio.new_event_loop()
    assert (gone(), limiter.statistics().granted, len(keyed)) == (None, 0, 0)
    assert loop.run_until_complete(limiter.acquire()) == loop.run_until_complete(keyed.acquire("key")) == 0.0
    limiter.pause(3600)
    loop.close()
@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(2))
async def test_asyncio(number):
    waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False, False]
"""
    run(project, tests).assert_outcomes(passed=4)


def test_without_pytest_asyncio_plain_tests_work(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiorate does not depend on it. Without naming the fixtures, nothing is loaded."""
    plain = "import asyncio\ndef test(virtual_loop, reset_limiters):\n    virtual_loop.run_until_complete(asyncio.sleep(3600))\n"
    project.makepyfile(pytest_asyncio="raise ImportError", test_plain=plain)
    project.makeini("[pytest]")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(project.path), prepend=":")
    project.runpytest_subprocess().assert_outcomes(passed=1)
    project.makeconftest("")
    project.runpytest_inprocess().assert_outcomes(errors=1)
