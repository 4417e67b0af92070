"""First mistakes with keys and budgets: the error says what to write instead."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import httpx2
import pytest
from helpers.driving import one_loop
from starlette.requests import Request

from aiorate import Budget, KeyedLimiter, Limiter, SlidingWindow
from aiorate.redis import RedisLimiter

REQUESTS = [httpx.Request("GET", "http://x"), httpx2.Request("GET", "http://x"), Request({"type": "http", "path": "/", "headers": []})]


@one_loop
@pytest.mark.parametrize("request_", REQUESTS, ids=["httpx", "httpx2", "starlette"])
async def test_request_object_as_a_key_is_refused(request_: Any) -> None:
    """Each request got a separate limiter, so nothing was limited, with no warning."""
    keyed = KeyedLimiter[Any](lambda key: "1/h")

    for ask in (keyed, keyed.acquire, keyed.try_acquire, keyed.__getitem__):
        with pytest.raises(TypeError, match=r"keyed\(request\.client\.host\)"):
            await ask(request_)
    assert len(keyed) == 0


@one_loop
async def test_keys_where_a_hook_belongs_send_nothing() -> None:
    """A synchronous client sent without a limit."""
    hook = KeyedLimiter[Any](lambda key: "1/h")
    network = httpx.MockTransport(lambda request: httpx.Response(200))
    with httpx.Client(transport=network, event_hooks={"request": [hook]}) as client, pytest.raises(TypeError, match=r"hooks\(keyed\)"):
        client.get("http://x")  # noqa: ASYNC212


@one_loop
async def test_object_that_looks_like_a_request_may_be_a_key() -> None:
    """Two equal ones are one key."""

    class Target(tuple[str, str]):
        url = headers = ""

    keyed = KeyedLimiter[Any](lambda key: "1/h")

    assert keyed[Target(("a", "b"))] is keyed[Target(("a", "b"))]


@one_loop
@pytest.mark.parametrize("name", ["delay", "pause", "resume", "set_rate", "refund", "charge", "reset", "bound", "slots", "statistics"])
async def test_method_of_each_key_names_the_key(name: str) -> None:
    """Python's own message only says that the attribute does not exist."""
    with pytest.raises(AttributeError, match=rf"keyed\[key\]\.{name}\(\)"):
        getattr(KeyedLimiter[str](lambda key: "1/s"), name)


@one_loop
async def test_unknown_attribute_gets_the_usual_error() -> None:
    """For hasattr(), and for tools that look for their own names."""
    for thing in (KeyedLimiter[str](lambda key: "1/s"), Budget(requests="1/s")):
        assert not hasattr(thing, "nonsense")
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = thing.nonsense  # type: ignore[union-attr]


@one_loop
@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"burst": 5}, "burst=20_000"),
        ({"timeout": 60}, r"reserve\(max_wait=1\)"),
        ({"max_concurrency": 3}, "an option of Limiter"),
    ],
)
async def test_option_as_a_dimension_is_refused(options: dict[str, Any], hint: str) -> None:
    """A burst or a timeout became another limit of 5 or 60 calls per second, with no warning."""
    with pytest.raises(TypeError, match=rf"Budget\({next(iter(options))}\): .*{hint}"):
        Budget(requests="1/s", **options)


@one_loop
async def test_reservation_without_a_block_names_async_with() -> None:
    """Python's own message speaks of protocols and expressions."""
    budget: Any = Budget(requests="1/s")
    with pytest.raises(TypeError, match=r"async with budget\.reserve"):
        await budget.reserve()
    for thing, kind in ((budget, TypeError), (budget.reserve(), RuntimeError)):
        with pytest.raises(kind, match=r"async with budget\.reserve"), thing:
            pass
    with pytest.raises(TypeError, match=r"async with budget\.reserve"):
        async with budget:
            pass
    assert budget.available("requests") == 1


@one_loop
@pytest.mark.parametrize(
    ("name", "hint"),
    [("set_rate", "call it on a Limiter"), ("reset", "call it on a Limiter"), ("try_reserve", "max_wait=0"), ("acquire", "reserve")],
)
async def test_method_missing_from_a_budget_names_the_right_one(name: str, hint: str) -> None:
    """Python's own message only says that the attribute does not exist."""
    with pytest.raises(AttributeError, match=hint):
        getattr(Budget(requests="1/s"), name)


@one_loop
async def test_wrong_amounts_are_answered_by_how_to_write_them() -> None:
    """For a dict it said to write the dict again, and for a timeout that no such dimension exists."""
    budget: Any = Budget(requests="1/s")
    with pytest.raises(TypeError, match=r"write reserve\(\*\*amounts\)"):
        budget.reserve({"requests": 1})
    with pytest.raises(TypeError, match="max_wait=, in seconds"):
        budget.reserve(timeout=1)


@one_loop
async def test_two_rates_name_all_of() -> None:
    """It said to write a rate of '10/s' per '100/min' seconds."""
    make: Any = Limiter
    with pytest.raises(TypeError, match="AllOf"):
        make("10/s", "100/min")
    with pytest.raises(TypeError, match=r"Rate\(10, 60\)"):
        make(10, 60)


@one_loop
async def test_wrong_shared_limit_names_the_argument() -> None:
    """It spoke of Limiter(), which the caller had not written."""
    keyed: Any = KeyedLimiter[str](lambda key: "1/s")
    with pytest.raises(TypeError, match=r"KeyedLimiter\(shared\): .*shared=tenants\['acme'\]"):
        KeyedLimiter(lambda key: "1/s", shared=keyed)
    with pytest.raises(TypeError, match=r"KeyedLimiter\(shared\): .*number 2 is a list"):
        KeyedLimiter(lambda key: "1/s", shared=["1/s", ["9/min"]])  # type: ignore[list-item]


@one_loop
async def test_a_dict_of_limits_names_its_method() -> None:
    """The limits are known, and only the way to pass them is wrong."""
    limits: Any = {"a": "1/s"}
    with pytest.raises(TypeError, match=r"KeyedLimiter\(limits\.__getitem__\)"):
        KeyedLimiter(limits)


@one_loop
async def test_wrong_argument_of_a_redis_limiter_names_the_right_one() -> None:
    """A strategy was "not a number", and options were only unexpected."""
    make: Any = RedisLimiter
    for strategy in (SlidingWindow("10/s"), Limiter("10/s")):
        with pytest.raises(TypeError, match=r"RedisLimiter\(rate\) .*burst=10"):
            make("redis://localhost", "name", strategy)
    with pytest.raises(TypeError, match=r"no option timeout: .*max_wait=1"):
        make("redis://localhost", "name", "10/s", timeout=1)
    with pytest.raises(TypeError, match="no option password: write it in the URL") as error:
        make("redis://localhost", "name", "10/s", password="s3cret")
    assert "s3cret" not in str(error.value)


@one_loop
async def test_a_second_loop_names_the_scope_of_threads() -> None:
    """The error said to write scope='process' when keys and budgets did not have it. They do now."""
    budget = Budget(requests="1/s")
    async with budget.reserve():
        error = await asyncio.to_thread(error_in_another_loop, budget)
    assert "create it with scope='process'" in error


def error_in_another_loop(budget: Budget) -> str:
    """Use the budget in a second event loop, and return the error's text."""

    async def ask() -> None:
        async with budget.reserve():
            pass

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(ask())
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"max_concurrency": 2}, r"asyncio\.Semaphore\(2\)"), ({"max_waiting": 5}, "max_waiting to"), ({"max_waiting": 0}, "max_waiting to")],
)
def test_an_option_that_cannot_be_shared_is_refused(options: dict[str, Any], hint: str) -> None:
    """Ten tasks were inside where two may be, and a line of five grew longer, because keys and budgets take only permits."""
    with pytest.raises(ValueError, match=rf"KeyedLimiter\(shared\): .*{hint}"):
        KeyedLimiter(lambda key: "1/s", shared=Limiter("10/s", **options))
    with pytest.raises(ValueError, match=rf"Budget\(tokens\): .*{hint}"):
        Budget(requests="1/s", tokens=Limiter("10/s", **options))
    tenants = KeyedLimiter[str](lambda key: Limiter("10/s", **options), shared="10/s")
    with pytest.raises(ValueError, match=rf"KeyedLimiter\(shared\): .*{hint}"):
        KeyedLimiter(lambda key: "1/s", shared=tenants["acme"])


@one_loop
async def test_the_options_of_a_key_are_its_own() -> None:
    """The factory's limiters may have the options refused above."""
    keyed = KeyedLimiter[str](lambda key: Limiter("10/s", max_concurrency=1, max_waiting=0), shared="10/s")
    async with keyed("ann"):
        assert len(keyed) == 1


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"max_concurrency": 5}, r"Limiter\('10/s', max_concurrency=5\)"),
        ({"max_waiting": 5, "catch_up": 1}, r"Limiter\('10/s', max_waiting=5, catch_up=1\)"),
        ({"burst": 5}, "TokenBucket"),
        ({"nonsense": 1}, "shared, max_keys, idle"),
    ],
)
def test_an_option_of_a_limiter_names_the_factory(options: dict[str, Any], hint: str) -> None:
    """Python's own message only says that the keyword is unexpected."""
    with pytest.raises(TypeError, match=hint):
        KeyedLimiter(lambda key: "10/s", **options)


@one_loop
async def test_keys_as_a_block_say_that_a_key_is_missing() -> None:
    """Python's own message speaks of a protocol."""
    with pytest.raises(TypeError, match=r"async with keyed\(key\)"):
        async with KeyedLimiter(lambda key: "10/s"):
            pass


@pytest.mark.parametrize(("name", "hint"), [("acquire", "budget.reserve"), ("try_acquire", "budget.reserve"), ("charge", "lease.settle")])
def test_method_of_a_limiter_names_that_of_a_budget(name: str, hint: str) -> None:
    """The error names reserve(); hasattr() still says that the attribute does not exist."""
    budget = Budget(tokens="10/s")

    with pytest.raises(AttributeError, match=hint):
        getattr(budget, name)()
    assert not hasattr(budget, name)
    assert not hasattr(budget, "nonsense")


def test_shared_limiter_cannot_be_the_limiter_of_a_key() -> None:
    """At any depth: its requests would wait for themselves."""
    top = Limiter("10/s")
    acme = KeyedLimiter[str](lambda key: "10/s", shared=top)["acme"]

    for shared in (top, acme):
        with pytest.raises(ValueError, match="make one for each key"):
            KeyedLimiter[str](lambda key, limiter=shared: limiter, shared=acme)["ann"]
    with pytest.raises(ValueError, match="make one for each key"):
        KeyedLimiter[str](lambda key: top, shared=acme)["ann"]
