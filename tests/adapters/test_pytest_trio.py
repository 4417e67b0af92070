"""The fixtures of aiorate.testing in tests of pytest-trio."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def test_limits_are_reset_for_tests_of_pytest_trio(pytester: pytest.Pytester) -> None:
    """Which run in virtual time by pytest-trio's own fixture; plain tests in between run in asyncio."""
    pytester.makeconftest('pytest_plugins = ["aiorate.testing"]')
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error")
    pytester.makepyfile("""
import pytest
import trio

from aiorate import Limiter

limiter = Limiter("1/min")

@pytest.fixture(autouse=True)
def fresh(reset_limiters):
    reset_limiters(limiter)

async def an_hour():
    for _ in range(61):
        await limiter.acquire()

@pytest.mark.trio
@pytest.mark.parametrize("number", range(2))
async def test_trio(autojump_clock, number):
    begin = trio.current_time()
    await an_hour()
    assert trio.current_time() == begin + 3600

def test_asyncio(virtual_loop):
    virtual_loop.run_until_complete(an_hour())
    assert virtual_loop.time() == 3600

@pytest.mark.trio
async def test_trio_again(autojump_clock):
    await an_hour()
""")

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=4)
