"""Each kind of limiter with each event: the bound holds, every request ends, and nothing is left behind.

`world` has the kinds of limiters, each with all sets of options, and `happenings` the events while tasks wait. Each pair is one
short program. A few of them are drawn for each kind; all of them are a slow test.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from contextlib import closing
from itertools import combinations, groupby
from typing import Any

import pytest
from helpers.stores import RealServer

import aiorate
from aiorate.testing import ManualClock

from .happenings import HAPPENINGS, LATER, Happening
from .world import KINDS, OPTIONS, Kind, Stage

FIRST = range(8)  # the requests before the event, of which some are granted at once
DRAWN = 12


def table(name: str) -> list[tuple[tuple[str, ...], str]]:
    """Each set of options of the kind with each event that it can meet."""
    kind = KINDS[name]
    sets = [each for size in range(len(kind.takes) + 1) for each in combinations(kind.takes, size)]
    return [
        (options, happening)
        for happening, event in HAPPENINGS.items()
        for options in sets
        if kind.scope in event.scopes and event.needs in (None, *kind.verbs)
        if not {"max_wait", "max_concurrency"} <= set(options)  # acquire(max_wait=...) takes no place
    ]


@pytest.mark.parametrize("name", KINDS)
def test_the_bound_holds_and_every_request_ends(name: str, request: pytest.FixtureRequest) -> None:
    """Defects hide in combinations of things that are right by themselves, and single tests do not cover all pairs."""
    drawn = random.Random(name).sample(table(name), DRAWN)
    play_all(name, drawn, request)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_bound_holds_in_the_whole_table(name: str, request: pytest.FixtureRequest) -> None:
    play_all(name, table(name), request)


def play_all(name: str, pairs: list[tuple[tuple[str, ...], str]], request: pytest.FixtureRequest) -> None:
    kind = KINDS[name]
    store = request.getfixturevalue("store") if kind.scope == "redis" else None
    for options, happening in pairs:
        if store is not None:
            store.send("FLUSHALL")
        threads, descriptors = set(threading.enumerate()), open_descriptors()
        clock = ManualClock() if kind.scope == "process" else None
        try:
            with closing(Stage({option: OPTIONS[option] for option in options}, clock, kind.scope == "redis")) as stage:
                play(stage, kind, HAPPENINGS[happening], store)
            assert threads >= {thread for thread in threading.enumerate() if thread.name != "aiorate"}  # which lingers
            assert descriptors >= open_descriptors()  # those of earlier tests may be collected meanwhile
        except Exception as error:
            raise AssertionError(f"{name}, {options}, {happening}: {error}") from error


def play(stage: Stage, kind: Kind, happening: Happening, store: RealServer | None) -> None:
    if happening.when == "before":
        happening.does(stage)
    stage.runner.run(ask_first(stage, kind, happening, store))
    if happening.when == "between":
        happening.does(stage)
    stage.runner.run(go_on(stage, happening))
    check(stage)
    stage.runner.run(end(stage))


async def ask_first(stage: Stage, kind: Kind, happening: Happening, store: RealServer | None) -> None:
    stage.subject = subject = kind.make(stage, store)
    for limiter in [subject.limiter] if isinstance(subject.limiter, aiorate.KeyedLimiter) else subject.looks:
        limiter.watch(stage.on_wait)
    stage.ask(*FIRST)
    if happening.granted:
        await stage.done()
    else:
        await stage.sleep(0.26)


async def go_on(stage: Stage, happening: Happening) -> None:
    if happening.when == "while":
        done: Any = happening.does(stage)
        if done is not None:
            await done
    await stage.sleep(0.05)
    stage.ask(*LATER)
    await stage.done()


def check(stage: Stage) -> None:
    """Assert that each request has a grant or an expected error, in order, and within the bounds."""
    may_tell = {"max_wait": aiorate.WaitTooLong, "max_waiting": aiorate.LineFull}
    allowed = tuple(error for option, error in may_tell.items() if option in stage.options)
    for number in stage.asked:
        if number in stage.lost or number in stage.granted:
            continue
        error = stage.told.get(number)
        if number in stage.cancelled:
            assert error is None or issubclass(error, (asyncio.CancelledError, *allowed))
        else:
            assert error is not None, f"{number} was never granted: {stage.granted}"
            assert issubclass(error, (*allowed, *[aiorate.LimiterClosed] * stage.closed)), f"{number} was told {error!r}"
    lines: dict[str, list[int]] = {}
    for number in stage.granted:
        lines.setdefault(stage.subject.path(number)[0], []).append(number)
    for name, numbers in lines.items():
        # Of two granted at one instant, the later one may run first if its task was started before the other was woken.
        order = [number for _, same in groupby(numbers, stage.granted.get) for number in sorted(same, key=stage.asked.index)]
        assert order == sorted(numbers, key=stage.asked.index), f"out of order in {name}: {numbers}"
    stage.check_bounds()
    begin, until = stage.quiet
    for number, at in stage.granted.items():
        if stage.subject.path(number)[0] == stage.subject.path(0)[0]:  # the limiter that was paused
            assert not begin <= at < until, f"{number} was granted at {at}, during the pause"
    most = stage.options.get("max_wait")
    if most is not None:
        for number, waited in stage.waits.items():
            assert waited <= most + stage.stalled + 0.002, f"{number} waited {waited} s"
    for name, level in stage.subject.levels.items():
        had = sum(name in stage.subject.path(number) for number in stage.granted)
        assert had == len(level.grants()), f"{name} granted {len(level.grants())}, and {had} went on"
    if not stage.reset and not stage.lost and not stage.extra:
        assert len(stage.granted) == sum(look.statistics().granted for look in stage.subject.looks)
    # Each request that waited was told of once, in its task: none that was cancelled, refused or lost with its loop.
    assert {number: [waited] for number, waited in stage.waited.items() if waited} == stage.watched


async def end(stage: Stage) -> None:
    """Assert that the limiter still works, or is closed, and that nothing is left once it is idle."""
    await stage.sleep(10)
    assert [] == stage.left_behind()
    if not stage.closed:
        stage.ask(100, 101)
        await stage.done()
        assert {100, 101} <= stage.granted.keys(), f"{stage.told}"
    await stage.sleep(10)
    assert [] == stage.left_behind()
    for each in (stage.subject.limiter, *stage.subject.also):
        await each.aclose()
    await stage.sleep(1)
    assert [] == stage.left_behind()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
