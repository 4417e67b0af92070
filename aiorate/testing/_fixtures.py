"""The fixtures of `aiorate.testing`, for pytest alone or with pytest-asyncio 1.4 or later. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiorate.testing._resetting import reset_limiters as reset_now
from aiorate.testing._time import VirtualLoop

try:
    import pytest_asyncio
except ImportError:
    pytest_asyncio = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any


@pytest.fixture(scope="session")
def reset_limiters() -> Callable[..., None]:
    """`aiorate.testing.reset_limiters`. Called by a fixture with ``autouse=True``, it has limits begin each test as new."""
    return reset_now


@pytest.fixture
def virtual_loop(request: pytest.FixtureRequest) -> Iterator[VirtualLoop]:
    """A `VirtualLoop`, in which waiting takes no time.

    For a plain function, a new one, whose tasks are cancelled when the test ends: ``virtual_loop.run_until_complete(main())``. An async
    test of pytest-asyncio that asks for it, as an argument or by ``pytest.mark.usefixtures``, runs in it, together with its fixtures.
    For anyio's plugin, let the fixture anyio_backend return ``"asyncio", {"loop_factory": VirtualLoop}``.
    """
    if pytest_asyncio is not None and pytest_asyncio.is_async_test(request.node):
        mark = request.node.get_closest_marker("asyncio")
        scope = mark.kwargs.get("loop_scope") if mark else None
        yield request.getfixturevalue(f"_loop_of_{scope or request.config.getini('asyncio_default_test_loop_scope')}")
        return
    yield (loop := VirtualLoop())
    if not loop.is_closed():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop()


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_asyncio_loop_factories(item: pytest.Function) -> Generator[None, Any, Any]:
    others = (yield) or {"asyncio": asyncio.new_event_loop}
    return {"virtual": VirtualLoop} if "virtual_loop" in item.fixturenames else others


# The loop of a test is known in it only. These run there before it, one for each scope of loops.
if pytest_asyncio is not None:
    for _scope in ("function", "class", "module", "package", "session"):

        async def _running_loop() -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

        globals()[f"_loop_of_{_scope}"] = pytest_asyncio.fixture(_running_loop, loop_scope=_scope)
