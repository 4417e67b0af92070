"""The fixtures for users' tests, in real runs of pytest."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONFTEST = 'import aiorate.testing.fixtures\npytest_plugins = ["aiorate.testing.fixtures"]\n'  # which may be imported before
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
HOUR = """
import asyncio
import gc
import weakref

import pytest
import pytest_asyncio

from aiorate import KeyedLimiter, Limiter
from aiorate.testing import VirtualLoop

limiter = Limiter("1/min")

@pytest.fixture(autouse=True, scope="session")
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
    pytester.makeini(INI + "filterwarnings = error\n")
    return pytester


def run(project: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(HOUR + tests)
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_a_plain_test_runs_its_coroutines_in_virtual_time(project: pytest.Pytester) -> None:
    """Each test has a new loop, which begins at 0, and leaves no task and no open loop behind."""
    tests = """
loops = []

async def leave_a_task():
    loops.append(asyncio.ensure_future(asyncio.sleep(1e9)))

def test_an_hour(virtual_loop):
    assert virtual_loop.run_until_complete(an_hour()) == 3600

def test_again(virtual_loop):
    loops.append(virtual_loop)
    assert virtual_loop.time() == 0
    virtual_loop.run_until_complete(leave_a_task())

def test_nothing_is_left():
    loop, task = loops
    assert loop.is_closed() and task.cancelled()

def test_a_closed_loop_is_left_alone(virtual_loop):
    virtual_loop.close()
"""
    run(project, tests).assert_outcomes(passed=4)


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_tests_of_pytest_asyncio_run_in_virtual_time(project: pytest.Pytester, mode: str) -> None:
    """Those that ask for it by an argument, by usefixtures, through another fixture, or by the mark, together with their fixtures."""
    tests = """
@pytest_asyncio.fixture
async def started():
    yield asyncio.get_running_loop()

@pytest.fixture
def patient(virtual_loop):
    return None

@pytest.mark.asyncio
async def test_argument(virtual_loop, started, request):
    assert asyncio.get_running_loop() is virtual_loop is started is request.getfixturevalue("virtual_loop")
    assert await an_hour() == 3600

@pytest.mark.asyncio
@pytest.mark.usefixtures("virtual_loop")
async def test_usefixtures():
    assert await an_hour() == 3600

@pytest.mark.asyncio
async def test_through_another_fixture(patient):
    assert await an_hour() == 3600

@pytest.mark.asyncio(loop_factories=["virtual", "asyncio"])
async def test_mark(request):
    assert isinstance(asyncio.get_running_loop(), VirtualLoop) == ("virtual" in request.node.name)

@pytest.mark.asyncio
async def test_other_tests_do_not():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
    assert await limiter.acquire() == 0.0
"""
    unmarked = "\nclass TestPatience:\n    async def test_argument(self, virtual_loop):\n        assert await an_hour() == 3600\n"
    result = run(project, tests + (unmarked if mode == "auto" else ""), f"--asyncio-mode={mode}")
    result.assert_outcomes(passed=7 if mode == "auto" else 6)


def test_tests_may_share_a_virtual_loop(project: pytest.Pytester) -> None:
    """The fixture is the loop that the test runs in, whatever its scope and that of its fixtures."""
    tests = """
@pytest_asyncio.fixture
async def another_loop():
    return asyncio.get_running_loop()
"""
    for scope in ("class", "module", "package", "session"):
        tests += f"""
@pytest.mark.asyncio(loop_scope="{scope}")
@pytest.mark.usefixtures("virtual_loop")
class Test_{scope}:
    async def test_first(self, virtual_loop, another_loop):
        assert asyncio.get_running_loop() is virtual_loop is not another_loop
        type(self).loop = virtual_loop

    async def test_second(self, virtual_loop):
        assert asyncio.get_running_loop() is virtual_loop is self.loop
"""
    run(project, tests).assert_outcomes(passed=8)


def test_loops_that_a_project_chose_are_kept(project: pytest.Pytester) -> None:
    """Its hook decides for all tests that do not ask for a virtual loop."""
    project.makeconftest(
        CONFTEST
        + """
import asyncio

class Ours(asyncio.SelectorEventLoop):
    pass

def pytest_asyncio_loop_factories(config, item):
    return {"ours": Ours, "plain": asyncio.new_event_loop}
"""
    )
    tests = """
kinds = []

@pytest.mark.asyncio
async def test_theirs():
    kinds.append(type(asyncio.get_running_loop()).__name__)

@pytest.mark.asyncio(loop_factories=["ours"])
async def test_one_of_theirs():
    kinds.append(type(asyncio.get_running_loop()).__name__)

@pytest.mark.asyncio
async def test_virtual(virtual_loop):
    kinds.append(type(asyncio.get_running_loop()).__name__)

def test_kinds():
    assert kinds.count("Ours") == 2 and kinds.count("VirtualLoop") == 1 and len(kinds) == 4
"""
    run(project, tests).assert_outcomes(passed=5)


def test_a_test_that_would_take_real_time_is_an_error(project: pytest.Pytester) -> None:
    """Each message says what to write instead."""
    tests = """
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_other_factory(virtual_loop): pass

async def test_nobody(virtual_loop): pass

@pytest.mark.trio
async def test_trio(virtual_loop): pass

@pytest.mark.anyio
async def test_anyio(virtual_loop): pass
"""
    project.makeini(INI + "markers = trio")
    result = run(project, tests)

    result.assert_outcomes(errors=5)
    for hint in (
        "no other loop_factories in its mark",
        "No plugin runs it. Mark it with @pytest.mark.asyncio",
        "Ask for pytest-trio's fixture autojump_clock instead",
        "return 'asyncio', {'loop_factory': VirtualLoop}",
        "return 'trio', {'clock': MockClock(autojump_threshold=0)}",
    ):
        assert hint in result.stdout.str()


def test_tests_of_anyio_run_in_virtual_time(project: pytest.Pytester) -> None:
    """Under asyncio and trio, with the loop or the clock that the fixture anyio_backend chooses."""
    tests = """
import anyio
from trio.testing import MockClock

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    if request.param == "asyncio":
        return "asyncio", {"loop_factory": VirtualLoop}
    return "trio", {"clock": MockClock(autojump_threshold=0)}

@pytest.fixture
async def begun(anyio_backend):
    return anyio.current_time()

@pytest.mark.anyio
async def test_an_hour(begun):
    for _ in range(61):
        await limiter.acquire()
    assert anyio.current_time() == begun + 3600

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})])
async def test_loop(virtual_loop):
    assert asyncio.get_running_loop() is virtual_loop
"""
    run(project, tests).assert_outcomes(passed=3)


def test_limits_are_reset_before_each_test(project: pytest.Pytester) -> None:
    """Once given, by a fixture of any scope or by a test, whichever loop used them last. The fixture keeps none of them alive."""
    tests = """
keyed, gone = KeyedLimiter(lambda key: "1/min"), []

def test_give_others(reset_limiters):
    own = Limiter("1/s")
    reset_limiters(keyed, own)
    gone.append(weakref.ref(own))
    with pytest.raises(TypeError, match="takes a Limiter"):  # and is not given again before each test
        reset_limiters([limiter])

@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("kind", ["plain", "virtual"])
def test_plain(kind, number, request):
    gc.collect()
    assert gone[0]() is None
    loop = request.getfixturevalue("virtual_loop") if kind == "virtual" else asyncio.new_event_loop()
    assert limiter.statistics().granted == len(keyed) == 0
    assert loop.run_until_complete(limiter.acquire()) == 0.0
    assert loop.run_until_complete(keyed.acquire("key")) == 0.0
    assert not limiter.try_acquire()
    limiter.pause(3600)
    loop.close()

@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(2))
async def test_asyncio(number):
    waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False, False]

@pytest.mark.anyio
async def test_anyio():
    assert await limiter.acquire() == 0.0
    limiter.charge(100)
"""
    run(project, tests).assert_outcomes(passed=9)


def test_without_pytest_asyncio_plain_tests_work(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiorate does not depend on it."""
    plain = "import asyncio\ndef test(virtual_loop, reset_limiters):\n    virtual_loop.run_until_complete(asyncio.sleep(3600))\n"
    project.makepyfile(pytest_asyncio="raise ImportError", test_plain=plain)
    project.makeini("[pytest]")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(project.path), prepend=":")

    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_nothing_is_loaded_that_is_not_named(pytester: pytest.Pytester) -> None:
    """Installing aiorate changes no test."""
    pytester.makeini(INI)
    pytester.makepyfile("def test_loop(virtual_loop): pass")

    result = pytester.runpytest_inprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'virtual_loop' not found*"])
