"""Fixtures for pytest: ``pytest_plugins = ["aiorate.testing.fixtures"]`` in the ``conftest.py`` at the root of the tests.

They work with pytest alone, with pytest-asyncio 1.4 or later, and with anyio's plugin. PYTEST_DONT_REWRITE: it may be imported before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING
from weakref import WeakSet

import pytest

from aiorate.testing._resetting import reset_limiters as reset_now
from aiorate.testing._time import VirtualLoop

try:
    import pytest_asyncio
except ImportError:
    pytest_asyncio = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from typing import Any

    from aiorate.testing._resetting import Limit

__all__ = ["reset_limiters", "virtual_loop"]

_GIVEN = pytest.StashKey[WeakSet["Limit"]]()


@pytest.fixture(scope="session")
def reset_limiters(pytestconfig: pytest.Config) -> Callable[..., None]:
    """A function that resets limits at once, and before each of the following tests: see `aiorate.testing.reset_limiters`."""
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

    For a plain function, a new one, whose tasks are cancelled when the test ends: ``virtual_loop.run_until_complete(main())``. An async
    test of pytest-asyncio that asks for it, as an argument or by ``pytest.mark.usefixtures``, runs in it, together with its fixtures. For
    a test of anyio's plugin it is the running loop, which the fixture ``anyio_backend`` must have chosen.
    """
    of_asyncio = _is_running() or (pytest_asyncio is not None and pytest_asyncio.is_async_test(request.node))
    if of_asyncio or iscoroutinefunction(request.function):
        loop, hint = _loop_of(request, of_asyncio)
        if not isinstance(loop, VirtualLoop):
            pytest.fail(f"virtual_loop: this test does not run in a VirtualLoop. {hint}", pytrace=False)
        yield loop
        return
    yield (loop := VirtualLoop())
    if not loop.is_closed():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop()


def _loop_of(request: pytest.FixtureRequest, of_asyncio: bool) -> tuple[object, str]:
    """The loop that an async test runs in, and what to do if that is not virtual."""
    backend = "Define the fixture anyio_backend: return"
    if of_asyncio:
        loop = asyncio.get_running_loop() if _is_running() else request.getfixturevalue(_name_of_loop(request.node))
        return loop, "Name it in the test's arguments or in usefixtures('virtual_loop'), and no other loop_factories in its mark."
    if request.node.get_closest_marker("trio") is not None:
        return None, "Ask for pytest-trio's fixture autojump_clock instead."
    if "anyio_backend" not in request.fixturenames:
        return None, "No plugin runs it. Mark it with @pytest.mark.asyncio, or write a plain function."
    if request.getfixturevalue("anyio_backend_name") == "trio":
        return None, f"{backend} 'trio', {{'clock': MockClock(autojump_threshold=0)}}."
    return request.getfixturevalue("_loop_of_anyio"), f"{backend} 'asyncio', {{'loop_factory': VirtualLoop}}."


def _is_running() -> bool:
    try:
        return asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_asyncio_loop_factories(item: pytest.Function) -> Generator[None, Any, Any]:
    """Run a test in a `VirtualLoop` if it asks for `virtual_loop`, or its mark does: ``asyncio(loop_factories=["virtual"])``."""
    others = (yield) or {"asyncio": asyncio.new_event_loop}
    mark = item.get_closest_marker("asyncio")
    if mark is not None and "loop_factories" in mark.kwargs and isinstance(others, Mapping):
        return {"virtual": VirtualLoop, **others}
    return {"virtual": VirtualLoop} if "virtual_loop" in item.fixturenames else others


# The loop of a test is known in it only. These run there before it: one for each scope of pytest-asyncio's loops, one for anyio's plugin.


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
    for _scope in ("function", "class", "module", "package", "session"):
        globals()[f"_loop_of_{_scope}"] = pytest_asyncio.fixture(_running_loop(), loop_scope=_scope)
