"""A store that refuses, answers nonsense, or has something else under the key: limiters, budgets and windows grant nothing for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest
from helpers.driving import others
from helpers.outages import KINDS, POLICIES, made, refuse, take
from helpers.stores import RealServer, TimedClient, now
from redis.exceptions import AuthenticationError, ResponseError

from aiorate import EngineUnavailable

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

REFUSALS = [
    refuse(),
    AuthenticationError("WRONGPASS invalid username-password pair"),
    ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    ResponseError("ERR unknown command 'EVALSHA'"),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_that_refuses_is_an_error_at_once(store: RealServer, kind: str) -> None:
    """Under every policy: neither local nor open, or a wrong password would be unlimited traffic. Put right, it works."""
    for policy, error in product(POLICIES, REFUSALS):
        row = kind, policy, error
        store.send("FLUSHALL")
        subject, client = made(store, kind, policy)
        client.error, began = error, now()
        for _ in range(2):
            result = await take(subject)
            assert isinstance(result, EngineUnavailable), row
            assert error is result.__cause__, row
        assert (began, "shared") == (now(), subject.statistics().state), row
        client.error = None
        assert began == await take(subject), row
        await subject.aclose()


class Changed(TimedClient):
    """The store's answers, changed on the way."""

    change: Callable[[str], object] | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = await super().execute_command(*args, **options)
        return reply if self.change is None else self.change(str(reply))


CHANGES: dict[str, Callable[[str], object]] = {
    **{repr(reply): lambda text, reply=reply: reply for reply in (b"", "", None, 7, "OK", b"\xff", [1])},  # type: ignore[misc]
    "half": lambda text: text[: len(text) // 2],
    "a word less": lambda text: text.rpartition(" ")[0],
    "a word more": lambda text: f"{text} 1 2 3",
    "without the end": lambda text: text.partition(";")[0],
    "another beginning": lambda text: f"hello {text}",
    "of another release": lambda text: text.replace("/2", "/3", 1),
    **{f"last {word}": lambda text, word=word: f"{text.rpartition(' ')[0]} {word}" for word in ("x", "nan", "1e300")},  # type: ignore[misc]
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_malformed_answer_is_an_outage(store: RealServer, kind: str) -> None:
    for name, change in CHANGES.items():
        store.send("FLUSHALL")
        client = Changed(store)
        subject, _ = made(store, kind, "raise", client, grace=0.3)
        client.change, began = change, now()

        assert isinstance(await take(subject), EngineUnavailable), (kind, name)
        assert now() == pytest.approx(began + 0.3, abs=1e-3), (kind, name)
        assert 0 == subject.statistics().granted, (kind, name)
        client.change = None
        while isinstance(await take(subject), EngineUnavailable):  # until that is heard
            await asyncio.sleep(0.1)
        await subject.aclose()
        assert not others()


VALUES = [
    *("", "5", "aiorate", "hello aiorate/2 limiter 1 2 3", "aiorate/2", "aiorate/2 limiter", "aiorate/2 limiter 1 0 0", "aiorate/2 x y z"),
    *("aiorate/2 limiter 1 0 0 0 0 0 nan 1 0 0", "aiorate/2 limiter 1 0 0 0 0 0 -1 1 1e300 0", "aiorate/2 window 1 2 3"),
    "aiorate/2 budget:requests,tokens 1 0 0 x 0 0 0 1 0 0 0 0",
]
RELEASES = ["aiorate/1 1 0 0", "aiorate/20 {}", "aiorate/2.1 1 0 0", "aiorate/", "aiorate/1"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_of_somebody_else_is_left_alone(store: RealServer, kind: str) -> None:
    """An error that says so, at once, and nothing is overwritten. That of another release is an outage, and names both."""
    for value in VALUES:
        store.send("SET", "aiorate:x", value)
        subject, _ = made(store, kind, "wait")
        assert "WRONGTYPE" in str(await take(subject)), (kind, value)
        assert value == store.send("GET", "aiorate:x"), (kind, value)
        await subject.aclose()
    for value in RELEASES:
        store.send("SET", "aiorate:x", value)
        subject, _ = made(store, kind, "raise", grace=0.1)
        form = value.split()[0]
        said = str(await take(subject))
        assert f"as {form}; this release reads aiorate/2" in said, (kind, value, said)
        assert value == store.send("GET", "aiorate:x"), (kind, value)
        await subject.aclose()


async def test_one_name_has_one_kind_of_limit(store: RealServer) -> None:
    for first, second in permutations(KINDS, 2):
        store.send("FLUSHALL")
        one, other = made(store, first, "raise")[0], made(store, second, "open")[0]
        assert isinstance(await take(one), float)
        said = str(await take(other))
        assert "WRONGTYPE the key aiorate:x " in said, (first, second, said)
        await one.aclose()
        await other.aclose()
