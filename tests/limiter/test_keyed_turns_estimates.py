"""delay() and max_wait follow the order of turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import SECOND, one_loop, turns
from helpers.samples import examples, sampled
from helpers.turns import DIRECT, Lines
from hypothesis import given
from hypothesis import strategies as st

from aiorate import KeyedLimiter, Limiter, TokenBucket, WaitTooLong

KEYS: dict[Any, int] = {"a": 1, "b": 1, "c": 3, "d": 20, "e": 100}


@sampled
@examples(300)
@given(
    served=st.lists(st.tuples(st.sampled_from([*KEYS, DIRECT]), st.integers(1, 5)), max_size=12),
    standing=st.dictionaries(st.sampled_from([*KEYS, DIRECT]), st.integers(1, 5), max_size=5),
    newcomer=st.tuples(st.sampled_from([*KEYS, DIRECT]), st.integers(1, 5)),
    levels=st.sampled_from([1, 2]),
)
def test_delay_is_exact_if_no_other_request_follows(
    served: list[tuple[Any, int]], standing: dict[Any, int], newcomer: tuple[Any, int], levels: int
) -> None:
    """Each of the others has one request in line, whatever was served before."""

    async def main() -> None:
        lines = Lines(TokenBucket("10/s", burst=5, initial=0), KEYS)
        if levels == 2:
            top = Limiter(TokenBucket("8/s", burst=5, initial=0), clock=lines.clock)
            between = KeyedLimiter[str](lambda key: lines.shared, shared=top, weight=lambda key: 7)
            assert between["shared"] is lines.shared
            tasks = [asyncio.ensure_future(top.acquire(3))]
        else:
            tasks = []
        key, permits = newcomer
        await lines.fill(served)
        await lines.run(len(served) // 2)
        kept = {key}
        for (name, _), each in zip(served, lines.tasks, strict=True):
            if not each.done() and name in kept:
                each.cancel()
            elif not each.done():
                kept.add(name)
        await lines.fill([each for each in standing.items() if each[0] not in kept])
        limiter = lines.shared if key is DIRECT else lines.keyed[key]
        delay = limiter.delay(permits)
        begin = lines.clock.now()
        task = lines.ask(key, permits)
        await turns(3)
        while not task.done():
            assert lines.clock.fire()
            await turns(4)

        assert lines.clock.now() - begin == pytest.approx(delay * SECOND, abs=2)
        for each in tasks:
            each.cancel()
        await lines.end()

    asyncio.run(main())


@one_loop
async def test_key_of_weight_100_is_not_refused_for_the_requests_of_others() -> None:
    """Ten thousand of them stand in their lines, or in the line of direct callers."""
    lines = Lines(TokenBucket("10/s", burst=1), {"batch": 1, "other": 1, "interactive": 100})
    await lines.fill([("batch", 1), ("other", 1), (DIRECT, 1)] * 10_000)

    assert lines.keyed["interactive"].delay() <= 0.1
    request = lines.ask("interactive")
    await turns(3)
    assert lines.keyed["interactive"].delay() == pytest.approx(0.3)  # one of another key comes in between
    waited = asyncio.ensure_future(lines.keyed.acquire("interactive", max_wait=0.3))
    await turns(3)
    await lines.clock.run(0.3)

    assert request.done()
    assert waited.result() == pytest.approx(0.3)
    with pytest.raises(WaitTooLong):
        await lines.shared.acquire(max_wait=900)
    await lines.end()


@one_loop
async def test_estimate_with_many_keys_is_between_its_turn_and_all_of_them() -> None:
    """Keys beyond the first 32 are counted by their permits: as many as belong to the time until the newcomer's turn."""
    weights: dict[Any, int] = {f"batch {number}": 1 for number in range(500)}
    lines = Lines(TokenBucket("10/s", burst=1), {**weights, "light": 1, "middle": 5, "heavy": 1000})
    assert lines.shared.try_acquire()
    await lines.fill([(key, 1) for key in weights])

    seen = {key: lines.keyed[key].delay() for key in ("light", "middle", "heavy")}

    assert seen["light"] == pytest.approx(50.1)
    assert 0.1 <= seen["middle"] <= 50.1 / 5 + 3.3
    assert seen["heavy"] == pytest.approx(0.1)
    await lines.end()
