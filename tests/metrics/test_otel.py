"""instrument(): what OpenTelemetry's SDK receives."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any
from weakref import ref

import pytest
from opentelemetry import trace

import aiorate
import aiorate.adaptive
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket
from aiorate.adaptive import AdaptiveRate
from aiorate.otel import instrument

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

NAME, LIMITED_BY = "aiorate.limiter.name", "aiorate.limited_by"


def one_a_second(**options: Any) -> Limiter:
    return Limiter(TokenBucket("1/s", burst=1), **options)


async def test_the_sdk_receives_counts_waits_and_spans(sdk: Any) -> None:
    """A request that did not wait is in the counter alone."""
    limiter = one_a_second(name="api")
    sdk.instrument(limiter)

    await asyncio.gather(*(limiter.acquire() for _ in range(4)))
    assert not limiter.try_acquire()
    with pytest.raises(aiorate.WaitTooLong):
        await limiter.acquire(max_wait=0)

    assert 4 == sdk.value("aiorate.permits", limiter="api")
    assert 2 == sdk.value("aiorate.refusals", limiter="api")
    assert 0 == sdk.value("aiorate.waiting", limiter="api")
    [point] = sdk.metric("aiorate.wait.duration").data.data_points
    assert (3, 6.0, 1.0, 3.0) == (point.count, point.sum, point.min, point.max)
    assert ["aiorate.wait"] * 3 == [span.name for span in sdk.spans]
    assert [1, 2, 3] == [(span.end_time - span.start_time) / 1e9 for span in sdk.spans]  # type: ignore[operator]
    assert {NAME: "api", "aiorate.permits": 1} == dict(sdk.spans[0].attributes or {})


async def test_a_span_is_a_child_of_the_callers(sdk: Any) -> None:
    """It begins when the request asked and ends when it goes on."""
    limiter, tracer = one_a_second(), sdk.tracers.get_tracer("test")
    sdk.instrument(limiter)
    await limiter.acquire()

    async def call(name: str) -> None:
        with tracer.start_as_current_span(name):
            await limiter.acquire()
            assert trace.get_current_span().get_span_context().is_valid

    await asyncio.gather(call("first"), call("second"))

    spans = {span.context.span_id: span for span in sdk.spans if span.context is not None}
    parents = [spans[span.parent.span_id].name for span in sdk.spans if span.name == "aiorate.wait" and span.parent is not None]
    assert ["first", "second"] == parents


async def test_waiting_is_how_many_wait_now(sdk: Any) -> None:
    """In a line of a limiter, and over the keys."""
    limiter, keyed = one_a_second(name="api"), KeyedLimiter(lambda key: one_a_second(), name="users")
    sdk.instrument(limiter, keyed)

    asking = [asyncio.ensure_future(each) for each in (*(limiter.acquire() for _ in range(3)), *(keyed.acquire(key) for key in "aabb"))]
    await asyncio.sleep(0.1)

    assert (2, 2) == (sdk.value("aiorate.waiting", limiter="api"), sdk.value("aiorate.waiting", limiter="users"))
    await asyncio.gather(*asking)
    assert (0, 0) == (sdk.value("aiorate.waiting", limiter="api"), sdk.value("aiorate.waiting", limiter="users"))


async def test_keys_are_summed_and_never_attributes(sdk: Any) -> None:
    """Neither in metrics nor in spans, and not by the names of limits that keys share either."""
    teams = KeyedLimiter(lambda team: Limiter(TokenBucket("1/s", burst=1), name=f"team {team}"))
    users = KeyedLimiter(lambda user: TokenBucket("10/s", burst=10), shared=lambda user: teams["secret"], name="users")
    unnamed = KeyedLimiter(lambda key: Limiter(TokenBucket("1/s", burst=1), name=key))
    sdk.instrument(users, unnamed)

    for limiter in (users, unnamed):
        for _ in range(2):
            await asyncio.gather(limiter.acquire("ann"), limiter.acquire("secret bob"))

    assert (4, 4) == (sdk.value("aiorate.permits", limiter="users"), sdk.value("aiorate.permits"))
    assert 3 == sdk.value("aiorate.wait.duration", limiter="users", limited_by="shared")
    assert 2 == sdk.value("aiorate.wait.duration")
    told = [
        value for name in ("permits", "waiting", "wait.duration") for each in sdk.series(f"aiorate.{name}") for value in dict(each).values()
    ]
    told += [value for span in sdk.spans for value in (span.attributes or {}).values()]
    assert not [value for value in told if "secret" in str(value) or "ann" in str(value)]


async def test_a_budget_has_a_series_for_each_dimension(sdk: Any) -> None:
    """And spans with the amounts."""
    budget = Budget(requests=TokenBucket("10/s", 10), tokens=TokenBucket("100/s", 100), name="llm")
    keyed = KeyedBudget(lambda key: Budget(tokens=TokenBucket("100/s", 100)), name="users")
    sdk.instrument(budget, keyed)

    for _ in range(2):
        async with budget.reserve(tokens=100) as lease, keyed.reserve("ann", tokens=70):
            lease.settle(tokens=100)

    assert 2 == sdk.value("aiorate.permits", limiter="llm", dimension="requests")
    assert 200 == sdk.value("aiorate.permits", limiter="llm", dimension="tokens")
    assert 140 == sdk.value("aiorate.permits", limiter="users", dimension="tokens")
    assert 1 == sdk.value("aiorate.wait.duration", limiter="llm", limited_by="tokens")
    assert {NAME: "llm", LIMITED_BY: "tokens", "aiorate.permits.requests": 1, "aiorate.permits.tokens": 100} == dict(
        sdk.spans[0].attributes or {}
    )


async def test_counters_never_fall(sdk: Any) -> None:
    """After a refund, a reset, an eviction and a limiter of the same name that is gone."""
    limiter, keyed = Limiter(TokenBucket("100/s", 100), name="api"), KeyedLimiter(lambda key: TokenBucket("10/s", 10), name="users")
    sdk.instrument(limiter, keyed)
    assert limiter.try_acquire(10)
    assert keyed.try_acquire("ann", 5)
    assert (10, 5) == (sdk.value("aiorate.permits", limiter="api"), sdk.value("aiorate.permits", limiter="users"))

    limiter.refund(4)
    await asyncio.sleep(10)
    assert keyed.evict() == 1
    assert (10, 5) == (sdk.value("aiorate.permits", limiter="api"), sdk.value("aiorate.permits", limiter="users"))
    assert limiter.try_acquire(5)
    assert keyed.try_acquire("ann", 1)
    assert (11, 6) == (sdk.value("aiorate.permits", limiter="api"), sdk.value("aiorate.permits", limiter="users"))
    limiter.reset()
    assert limiter.try_acquire(2)
    assert 13 == sdk.value("aiorate.permits", limiter="api")
    another = Limiter(TokenBucket("100/s", 100), name="api")
    sdk.instrument(another)
    assert another.try_acquire(30)
    assert 43 == sdk.value("aiorate.permits", limiter="api")
    del another
    assert 43 == sdk.value("aiorate.permits", limiter="api")


async def test_limiters_of_one_name_are_one_series(sdk: Any) -> None:
    """Unnamed ones too; a limiter that is given twice counts once."""
    limiters = [one_a_second(name="api"), one_a_second(name="api"), one_a_second(), one_a_second()]
    undo = [sdk.instrument(*limiters, limiters[0]), sdk.instrument(*limiters)]

    await asyncio.gather(*(limiter.acquire() for limiter in limiters for _ in range(2)))

    for _ in range(2):
        assert (4, 4) == (sdk.value("aiorate.permits", limiter="api"), sdk.value("aiorate.permits"))
        assert (2, 2) == (sdk.value("aiorate.wait.duration", limiter="api"), sdk.value("aiorate.wait.duration"))
        assert 4 == len(sdk.spans)
        undo.pop()()


async def test_undone_in_any_order_and_twice(sdk: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is reported afterwards, and instrumenting again makes no second instrument."""
    for order in ((0, 1), (1, 0)):
        limiter, before = one_a_second(name=f"api {order}"), len(sdk.spans)
        undo = [sdk.instrument(limiter), sdk.instrument(limiter)]
        await asyncio.gather(limiter.acquire(), limiter.acquire())

        undo[order[0]]()
        undo[order[0]]()
        assert 2 == sdk.value("aiorate.permits", limiter=limiter.name)
        undo[order[1]]()
        await limiter.acquire()

        assert sdk.value("aiorate.permits", limiter=limiter.name) is None
        assert sdk.value("aiorate.waiting", limiter=limiter.name) is None
        assert len(sdk.spans) == before + 1
        undo_all = sdk.instrument(limiter)
        await limiter.acquire()
        assert (4, len(sdk.spans)) == (sdk.value("aiorate.permits", limiter=limiter.name), before + 2)
        undo_all()
    assert not caplog.records


async def test_the_sum_of_a_name_keeps_what_was_undone(sdk: Any) -> None:
    """As long as another of that name is reported; reported again, it goes on where it was."""
    one, other = (Limiter(TokenBucket("10/s", 10), name="api") for _ in range(2))
    sdk.instrument(one)
    undo = sdk.instrument(other)
    assert one.try_acquire(3)
    assert other.try_acquire(4)

    undo()
    assert other.try_acquire(1)
    assert 7 == sdk.value("aiorate.permits", limiter="api")
    sdk.instrument(other)

    assert 8 == sdk.value("aiorate.permits", limiter="api")


async def test_an_instrumented_limiter_can_be_collected(sdk: Any) -> None:
    """Nothing that stays with the providers refers to it."""
    limiters: list[Any] = [one_a_second(), KeyedLimiter(lambda key: one_a_second()), Budget(requests="1/s")]
    undo = sdk.instrument(*limiters)
    await limiters[0].acquire()
    await limiters[0].acquire()
    there = [ref(limiter) for limiter in limiters]

    limiters.clear()
    gc.collect()

    assert [None] * 3 == [each() for each in there]
    assert sdk.metric("aiorate.permits") is None
    undo()


async def test_limiters_that_are_gone_leave_nothing(sdk: Any) -> None:
    """Ten thousand of as many names, which nobody collected metrics of, and which were undone or not."""

    def instrumented(count: int) -> int:
        for number in range(count):
            undo = sdk.instrument(one_a_second(name=f"api {number}"))
            if number % 2:
                undo()
        del undo
        gc.collect()
        return len(gc.get_objects())

    before = instrumented(10)

    assert instrumented(10_000) <= before + 10


async def test_on_wait_of_the_program_is_called_as_well(sdk: Any) -> None:
    """Instrumenting takes nothing away."""
    told: list[aiorate.Waited] = []
    limiter = one_a_second(on_wait=told.append)
    undo = sdk.instrument(limiter)
    await limiter.acquire()
    await limiter.acquire()
    undo()
    await limiter.acquire()

    assert (2, 1) == (len(told), len(sdk.spans))


class Wrapped:
    """As an AdaptiveRate: it has a limiter."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter


async def test_what_has_a_limiter_is_instrumented(sdk: Any) -> None:
    """Together with that limiter itself it counts once."""
    limiter = one_a_second(name="api")
    adaptive = AdaptiveRate(Limiter("10/s", name="adaptive"), "1/s", "100/s")
    sdk.instrument(Wrapped(limiter), limiter, adaptive)
    await limiter.acquire()
    await adaptive.limiter.acquire()

    assert (1, 1) == (sdk.value("aiorate.permits", limiter="api"), sdk.value("aiorate.permits", limiter="adaptive"))


async def test_anything_else_is_refused(sdk: Any) -> None:
    """At once, and nothing is reported then."""
    limiter: Any = one_a_second(name="api")
    table: list[tuple[list[Any], str]] = [
        ([], "not none"),
        ([limiter, [limiter]], "not list"),
        ([limiter, Limiter], "not the class Limiter"),
        ([limiter, TokenBucket("1/s", burst=1)], "not TokenBucket"),
    ]
    for limiters, hint in table:
        with pytest.raises(TypeError, match=hint):
            sdk.instrument(*limiters)

    assert sdk.metric("aiorate.permits") is None


async def test_without_an_sdk_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    """The API's own placeholders take it all."""
    caplog.set_level(logging.WARNING)
    limiter = one_a_second(name="api")
    undo = instrument(limiter)

    await limiter.acquire()
    assert await limiter.acquire() == 1.0
    undo()

    assert not caplog.records
