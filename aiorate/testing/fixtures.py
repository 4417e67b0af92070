"""Fixtures for pytest: ``pytest_plugins = ["aiorate.testing.fixtures"]`` in the ``conftest.py`` at the root of the tests.

Nothing loads them that does not name them. They work with pytest alone, with pytest-asyncio 1.4 or later, and with anyio's plugin.
PYTEST_DONT_REWRITE: programs may import this before pytest does, and it has no assertion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING
from weakref import WeakSet

import pytest

from aiorate.testing.loop import VirtualLoop
from aiorate.testing.resetting import reset_limiters as reset_now

try:
    import pytest_asyncio
except ImportError:
    pytest_asyncio = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from typing import Any

    from aiorate.testing.resetting import Limit, ResetLimiters

__all__ = ["reset_limiters", "virtual_loop"]

_GIVEN = pytest.StashKey[WeakSet["Limit"]]()


@pytest.fixture(scope="session")
def reset_limiters(pytestconfig: pytest.Config) -> ResetLimiters:
    """A function that resets limits at once, and again before each of the following tests: ``reset_limiters(app.limiter, app.users)``.

    `aiorate.testing.reset_limiters` says what a reset is, and which errors it raises. Any fixture may call it, a session's too.
    """
    given = pytestconfig.stash.setdefault(_GIVEN, WeakSet())

    def reset(*limits: Limit) -> None:
        reset_now(*limits)
        given.update(limits)

    return reset


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reset what `reset_limiters` was given."""
    reset_now(*item.config.stash.get(_GIVEN, ()))


@pytest.fixture
def virtual_loop(request: pytest.FixtureRequest) -> Iterator[VirtualLoop]:
    """A `VirtualLoop`, in which waiting takes no time.

    For a plain function, a new one: ``virtual_loop.run_until_complete(main())``. Tasks that are left are cancelled when the test ends.
    An ``async def`` test of pytest-asyncio that asks for it, as an argument or by ``pytest.mark.usefixtures``, runs in it, together with
    its async fixtures. For a test of anyio's plugin it is the running loop, which the fixture ``anyio_backend`` must have chosen.
    """
    if _is_running():
        yield _checked(asyncio.get_running_loop(), _OF_PYTEST_ASYNCIO)
    elif pytest_asyncio is not None and pytest_asyncio.is_async_test(request.node):
        yield _checked(request.getfixturevalue(_name_of_loop(request.node)), _OF_PYTEST_ASYNCIO)
    elif not iscoroutinefunction(request.function):
        runner = asyncio.Runner(loop_factory=VirtualLoop)
        yield _checked(runner.get_loop(), "")
        if not runner.get_loop().is_closed():
            runner.close()
    elif request.node.get_closest_marker("trio") is not None:
        pytest.fail(_OF_PYTEST_TRIO, pytrace=False)
    elif "anyio_backend" in request.fixturenames and request.getfixturevalue("anyio_backend_name") == "trio":
        pytest.fail(_OF_ANYIO_WITH_TRIO, pytrace=False)
    elif "anyio_backend" in request.fixturenames:
        yield _checked(request.getfixturevalue("_loop_of_anyio"), _OF_ANYIO)
    else:
        pytest.fail(_OF_NOBODY, pytrace=False)


_NOT_VIRTUAL = "virtual_loop: this test does not run in a VirtualLoop."
_OF_PYTEST_ASYNCIO = (
    f"{_NOT_VIRTUAL} Name the fixture in the test's arguments, or in @pytest.mark.usefixtures('virtual_loop'), not in"
    " request.getfixturevalue(), and remove other loop_factories from its mark. pytest-asyncio 1.4 or later is needed."
)
_OF_ANYIO = f"{_NOT_VIRTUAL} Define the fixture anyio_backend: return 'asyncio', {{'loop_factory': VirtualLoop}}."
_NOT_OF_TRIO = "virtual_loop is a loop of asyncio, and this test runs under trio."
_OF_ANYIO_WITH_TRIO = (
    f"{_NOT_OF_TRIO} Leave it out, and define the fixture anyio_backend: return 'trio', {{'clock': MockClock(autojump_threshold=0)}}."
)
_OF_PYTEST_TRIO = f"{_NOT_OF_TRIO} Ask for pytest-trio's fixture autojump_clock instead."
_OF_NOBODY = (
    "virtual_loop: no plugin runs this async test. Install pytest-asyncio and mark the test with @pytest.mark.asyncio, or write a plain"
    " function: virtual_loop.run_until_complete(main())."
)


def _is_running() -> bool:
    """Whether the test asks for the fixture while it runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _checked(loop: asyncio.AbstractEventLoop, otherwise: str) -> VirtualLoop:
    if not isinstance(loop, VirtualLoop):
        pytest.fail(otherwise, pytrace=False)
    return loop


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_asyncio_loop_factories(item: pytest.Function) -> Generator[None, Any, Any]:
    """Have pytest-asyncio run a test in a `VirtualLoop` if the test asks for `virtual_loop`, or its mark for the factory ``virtual``.

    ``@pytest.mark.asyncio(loop_factories=["virtual"])``. Other tests run in the loops that other plugins and ``conftest.py`` chose.
    """
    others = yield
    if others is None:
        others = {"asyncio": asyncio.new_event_loop}
    mark = item.get_closest_marker("asyncio")
    if mark is not None and "loop_factories" in mark.kwargs and isinstance(others, Mapping):
        return {"virtual": VirtualLoop, **others}
    return {"virtual": VirtualLoop} if "virtual_loop" in item.fixturenames else others


# The loop that a test runs in is known in it only. These run there before the test: one for each scope that a loop of pytest-asyncio can
# have, and one for anyio's plugin.


def _name_of_loop(item: pytest.Item) -> str:
    mark = item.get_closest_marker("asyncio")
    given = {} if mark is None else mark.kwargs
    return f"_loop_of_{given.get('loop_scope') or given.get('scope') or item.config.getini('asyncio_default_test_loop_scope')}"


def _running_loop() -> Callable[[], Coroutine[Any, Any, asyncio.AbstractEventLoop]]:
    async def running_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    return running_loop


_loop_of_anyio = pytest.fixture(_running_loop())

if pytest_asyncio is not None:
    _loop_of_function = pytest_asyncio.fixture(_running_loop(), loop_scope="function")
    _loop_of_class = pytest_asyncio.fixture(_running_loop(), loop_scope="class")
    _loop_of_module = pytest_asyncio.fixture(_running_loop(), loop_scope="module")
    _loop_of_package = pytest_asyncio.fixture(_running_loop(), loop_scope="package")
    _loop_of_session = pytest_asyncio.fixture(_running_loop(), loop_scope="session")
