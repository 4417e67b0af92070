"""The fixtures for users' tests, in real runs of pytest."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["aiorate.testing.fixtures"]\n'

HOUR = """
import asyncio

import pytest
import pytest_asyncio

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
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n")
    return pytester


def run(project: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(tests)
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_a_plain_test_runs_its_coroutines_in_virtual_time(project: pytest.Pytester) -> None:
    """Each test has a new loop, which begins at 0, and leaves no task and no open loop behind."""
    tests = (
        HOUR
        + """
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
    )
    run(project, tests).assert_outcomes(passed=4)


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_tests_of_pytest_asyncio_run_in_virtual_time(project: pytest.Pytester, mode: str) -> None:
    """Those that ask for it by an argument, by usefixtures, through another fixture, or by the mark, together with their fixtures."""
    tests = (
        HOUR
        + """
@pytest_asyncio.fixture
async def started():
    yield asyncio.get_running_loop()

@pytest.fixture
def patient(virtual_loop):
    return None

@pytest.mark.asyncio
async def test_argument(virtual_loop, started):
    assert asyncio.get_running_loop() is virtual_loop is started
    assert await an_hour() == 3600

@pytest.mark.asyncio
@pytest.mark.usefixtures("virtual_loop")
async def test_usefixtures():
    assert await an_hour() == 3600

@pytest.mark.asyncio
async def test_through_another_fixture(patient):
    assert await an_hour() == 3600

@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_mark():
    assert await an_hour() == 3600

@pytest.mark.asyncio(loop_factories=["virtual", "asyncio"])
async def test_both(request):
    assert isinstance(asyncio.get_running_loop(), VirtualLoop) == ("virtual" in request.node.name)

@pytest.mark.asyncio
async def test_other_tests_do_not():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
    assert await limiter.acquire() == 0.0

@pytest.mark.asyncio
async def test_asked_for_while_it_runs(request, virtual_loop):
    assert request.getfixturevalue("virtual_loop") is virtual_loop
"""
    )
    run(project, tests, f"--asyncio-mode={mode}").assert_outcomes(passed=8)


def test_auto_mode_needs_no_mark(project: pytest.Pytester) -> None:
    """The mark is added by pytest-asyncio."""
    tests = (
        HOUR
        + """
class TestPatience:
    async def test_argument(self, virtual_loop):
        assert asyncio.get_running_loop() is virtual_loop
        assert await an_hour() == 3600

async def test_other_tests_do_not():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
"""
    )
    run(project, tests, "--asyncio-mode=auto").assert_outcomes(passed=2)


@pytest.mark.parametrize("scope", ["class", "module", "package", "session"])
def test_tests_may_share_a_virtual_loop(project: pytest.Pytester, scope: str) -> None:
    """The fixture is the loop that the test runs in, whatever its scope and that of its fixtures."""
    tests = (
        HOUR
        + f"""
@pytest_asyncio.fixture
async def another_loop():
    return asyncio.get_running_loop()

@pytest.mark.asyncio(loop_scope="{scope}")
@pytest.mark.usefixtures("virtual_loop")
class TestAll:
    async def test_first(self, virtual_loop, another_loop):
        assert asyncio.get_running_loop() is virtual_loop is not another_loop
        TestAll.end = await an_hour()
        TestAll.loop = virtual_loop

    async def test_second(self, virtual_loop):
        assert asyncio.get_running_loop() is virtual_loop is TestAll.loop
        assert await an_hour() >= TestAll.end + 3600
"""
    )
    run(project, tests).assert_outcomes(passed=2)


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
    tests = (
        HOUR
        + """
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
    )
    run(project, tests).assert_outcomes(passed=5)


def test_other_tests_keep_their_names_and_loops(project: pytest.Pytester) -> None:
    """Only plain tests between those that share a loop move: pytest groups tests by their parameters."""
    tests = (
        HOUR
        + """
@pytest.mark.asyncio(loop_scope="session")
async def test_1():
    global loop
    loop = asyncio.get_running_loop()

def test_2():
    pass

@pytest.mark.asyncio(loop_scope="session")
async def test_3():
    assert asyncio.get_running_loop() is loop

@pytest.mark.asyncio
async def test_4():
    assert asyncio.get_running_loop() is not loop
"""
    )
    result = run(project, tests, "-v")

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"*::test_{number} PASSED*" for number in (1, 3, 2, 4)])


def test_a_test_that_would_take_real_time_is_an_error(project: pytest.Pytester) -> None:
    """Each message says what to write instead."""
    tests = (
        HOUR
        + """
@pytest.mark.asyncio
async def test_late(request):
    request.getfixturevalue("virtual_loop")

@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_other_factory(virtual_loop):
    pass

async def test_nobody(virtual_loop):
    pass

@pytest.mark.trio
async def test_trio(virtual_loop):
    pass

@pytest.mark.anyio
async def test_anyio(virtual_loop):
    pass
"""
    )
    project.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers = trio")
    result = run(project, tests)

    result.assert_outcomes(failed=1, errors=5)
    said = result.stdout.str()
    for hint in (
        "usefixtures('virtual_loop'), not in request.getfixturevalue()",
        "remove other loop_factories from its mark",
        "no plugin runs this async test. Install pytest-asyncio",
        "Ask for pytest-trio's fixture autojump_clock instead",
        "return 'asyncio', {'loop_factory': VirtualLoop}",
        "return 'trio', {'clock': MockClock(autojump_threshold=0)}",
    ):
        assert hint in said


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_tests_of_anyio_run_in_virtual_time(project: pytest.Pytester, mode: str) -> None:
    """Under asyncio and trio, with the loop or the clock that the fixture anyio_backend chooses."""
    tests = (
        HOUR
        + """
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
    )
    run(project, tests, f"--anyio-mode={mode}").assert_outcomes(passed=3)


def test_limits_are_reset_before_each_test(project: pytest.Pytester) -> None:
    """Once given, by a fixture of any scope or by a test, a limit begins every test as new, whichever loop used it last."""
    tests = (
        HOUR.replace("(autouse=True)", '(autouse=True, scope="session")')
        + """
keyed = KeyedLimiter(lambda key: "1/min")

def test_give_another(reset_limiters):
    reset_limiters(keyed)

@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["plain", "virtual"])
def test_plain(kind, number, request):
    loop = request.getfixturevalue("virtual_loop") if kind == "virtual" else asyncio.new_event_loop()
    assert limiter.statistics().granted == len(keyed) == 0
    assert loop.run_until_complete(limiter.acquire()) == 0.0
    assert loop.run_until_complete(keyed.acquire("key")) == 0.0
    assert not limiter.try_acquire()
    limiter.pause(3600)
    loop.close()

@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(3))
async def test_asyncio(number):
    assert limiter.statistics().granted == len(keyed) == 0
    waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False, False]

@pytest.mark.anyio
@pytest.mark.parametrize("number", range(3))
async def test_anyio(number):
    assert await limiter.acquire() == 0.0
    limiter.charge(100)
"""
    )
    run(project, tests).assert_outcomes(passed=16)


def test_wrong_arguments_fail_where_they_are_given(project: pytest.Pytester) -> None:
    """And are not given again before each test."""
    tests = (
        HOUR
        + """
def test_wrong(reset_limiters):
    with pytest.raises(TypeError, match="takes a Limiter"):
        reset_limiters([limiter])

def test_next():
    pass
"""
    )
    run(project, tests).assert_outcomes(passed=2)


def test_limits_that_are_gone_are_not_reset(project: pytest.Pytester) -> None:
    """The fixture keeps none of them."""
    tests = (
        HOUR
        + """
import gc
import weakref

gone = []

def test_give(reset_limiters):
    own = Limiter("1/s")
    reset_limiters(own)
    gone.append(weakref.ref(own))

def test_next():
    gc.collect()
    assert gone[0]() is None
"""
    )
    run(project, tests).assert_outcomes(passed=2)


@pytest.mark.slow
def test_the_fixtures_work_in_several_processes(project: pytest.Pytester) -> None:
    """Each worker of pytest-xdist has its own."""
    tests = (
        HOUR
        + """
@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(4))
async def test_async(number, virtual_loop):
    assert await an_hour() == 3600

@pytest.mark.parametrize("number", range(4))
def test_plain(number, virtual_loop):
    assert virtual_loop.run_until_complete(an_hour()) == 3600
"""
    )
    run(project, tests, "-n2").assert_outcomes(passed=8)


def test_without_pytest_asyncio_plain_tests_work(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiorate does not depend on it."""
    project.makepyfile(
        pytest_asyncio="raise ImportError",
        test_plain="""
import asyncio

def test_plain(virtual_loop, reset_limiters):
    reset_limiters()
    assert virtual_loop.run_until_complete(asyncio.sleep(3600, "slept")) == "slept"
""",
    )
    project.makeini("[pytest]")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(project.path), prepend=":")

    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_nothing_is_loaded_that_is_not_named(pytester: pytest.Pytester) -> None:
    """Installing aiorate changes no test."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile("def test_loop(virtual_loop): pass")

    result = pytester.runpytest_inprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'virtual_loop' not found*"])


def test_the_module_may_be_imported_before(project: pytest.Pytester) -> None:
    """As for its types, by a conftest.py: pytest would warn about a module that it cannot rewrite."""
    project.makeconftest("import aiorate.testing.fixtures\n" + CONFTEST)

    run(project, HOUR + "def test_plain(virtual_loop): pass").assert_outcomes(passed=1)
