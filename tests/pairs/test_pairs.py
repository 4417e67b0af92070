"""Each kind of limiter with each event: the bound holds, every request ends, and nothing is left behind.

`kinds` has the kinds of limiters, each with all sets of options, and `happenings` the events while tasks wait. Each pair is one
short program. A sample of them by default, and all with ``AIORATE_TEST_ALL=1``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from typing import Any

import pytest
from helpers.samples import sample, sampled
from helpers.stores import RealServer

import aiorate
from aiorate.testing import ManualClock

from .happenings import HAPPENINGS, LATER, Happening
from .kinds import KINDS, OPTIONS, Kind
from .world import Stage

FIRST = range(8)  # the requests before the event, of which some are granted at once


def table() -> list[tuple[Kind, tuple[str, ...], Happening]]:
    """Each kind with each set of its options and each event that it can meet."""
    return [
        (kind, options, happening)
        for happening in HAPPENINGS
        for kind in KINDS
        for options in sets_of(kind)[: 1 if happening.alone else None]
        if kind.scope in happening.scopes and happening.since <= sys.version_info and happening.needs in (None, *kind.verbs)
    ]


def rows(size: int) -> list[Any]:
    """A sample of the table, with the marks of the events."""
    return [pytest.param(pair, marks=pair[2].marks) for pair in sample(table(), size)]


def sets_of(kind: Kind) -> list[tuple[str, ...]]:
    sets = [each for size in range(len(kind.takes) + 1) for each in combinations(kind.takes, size)]
    # acquire(max_wait=...) takes no place.
    return [each for each in sets if not {"max_wait", "max_concurrency"} <= set(each)]


def name_of(pair: tuple[Kind, tuple[str, ...], Happening]) -> str:
    kind, options, happening = pair
    return "-".join([str(kind), *options, str(happening)])


@pytest.fixture(scope="module")
def running() -> Iterator[RealServer]:
    with RealServer() as server:
        yield server


@pytest.fixture
def store(request: pytest.FixtureRequest) -> RealServer | None:
    kind = request.getfixturevalue("pair")[0]
    if kind.scope != "redis":
        return None
    server: RealServer = request.getfixturevalue("running")
    server.send("FLUSHALL")
    return server


@sampled
@pytest.mark.parametrize("pair", rows(500), ids=name_of)
def test_the_bound_holds_and_every_request_ends(pair: tuple[Kind, tuple[str, ...], Happening], store: RealServer | None) -> None:
    """Defects hide in combinations of things that are right by themselves, and single tests do not cover all pairs."""
    kind, options, happening = pair
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    stage = Stage({name: OPTIONS[name] for name in options}, ManualClock() if kind.scope == "process" else None, kind.scope == "redis")
    with closing(stage):
        play(stage, kind, happening, store)
    assert threads >= set(threading.enumerate())
    assert descriptors == open_descriptors()


@sampled
@pytest.mark.parametrize("pair", rows(200), ids=name_of)
def test_on_wait_is_told_of_each_request_once(pair: tuple[Kind, tuple[str, ...], Happening], store: RealServer | None) -> None:
    """In its task, with the seconds that the caller gets; of none that was cancelled, refused or lost with its loop."""
    kind, options, happening = pair
    clock = ManualClock() if kind.scope == "process" else None
    with closing(Stage({name: OPTIONS[name] for name in options}, clock, kind.scope == "redis", watched={})) as stage:
        play(stage, kind, happening, store)


def play(stage: Stage, kind: Kind, happening: Happening, store: RealServer | None) -> None:
    if happening.before is not None:
        happening.before(stage)
    stage.runner.run(ask_first(stage, kind, happening, store))
    if happening.between is not None:
        happening.between(stage)
    stage.runner.run(go_on(stage, happening))
    check(stage)
    stage.runner.run(end(stage))


async def ask_first(stage: Stage, kind: Kind, happening: Happening, store: RealServer | None) -> None:
    stage.subject = kind.make(stage, store)
    if stage.watched is not None:
        subject = stage.subject
        for limiter in [subject.limiter] if isinstance(subject.limiter, aiorate.KeyedLimiter) else subject.looks():
            limiter.watch(stage.on_wait)
    stage.ask(*FIRST)
    if happening.waits_first:
        await stage.done()
    else:
        await stage.sleep(0.26)


async def go_on(stage: Stage, happening: Happening) -> None:
    if happening.act is not None:
        done = happening.act(stage)
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
        elif stage.closed:
            assert error is not None
            assert issubclass(error, (aiorate.LimiterClosed, *allowed))
        else:
            assert error is not None, f"{number} was never granted: {stage.granted}"
            assert issubclass(error, allowed), f"{number} was told {error!r}"
    lines: dict[str, list[int]] = {}
    for number in stage.granted:
        lines.setdefault(stage.subject.path(number)[0], []).append(number)
    place = {number: index for index, number in enumerate(stage.asked)}
    for name, numbers in lines.items():
        assert numbers == sorted(numbers, key=place.__getitem__), f"out of order in {name}: {numbers}"
    stage.check_bounds()
    begin, until = stage.quiet
    for number, at in stage.granted.items():
        if stage.subject.path(number)[0] == stage.subject.path(0)[0]:  # the limiter that was paused
            assert not begin <= at < until, f"{number} was granted at {at}, during the pause"
    most = stage.options.get("max_wait")
    if most is not None:
        for number, waited in stage.waits.items():
            assert waited <= most + stage.stalled + 0.002, f"{number} waited {waited} s"
    check_counts(stage)
    if stage.watched is not None:
        assert {number: [waited] for number, waited in stage.waited.items() if waited} == stage.watched


def check_counts(stage: Stage) -> None:
    """Assert that each level granted what its callers have, and counts it."""
    for name, level in stage.subject.levels.items():
        had = sum(name in stage.subject.path(number) for number in stage.granted)
        assert had == len(level.grants()), f"{name} granted {len(level.grants())}, and {had} went on"
    if not stage.reset and not stage.lost and not stage.extra:
        assert len(stage.granted) == sum(look.statistics().granted for look in stage.subject.looks())


async def end(stage: Stage) -> None:
    """Assert that the limiter still works, or is closed, and that nothing is left once it is idle."""
    subject = stage.subject
    await stage.sleep(10)
    assert [] == stage.left_behind()
    stage.closed or await works(stage)
    await stage.sleep(10)
    assert [] == stage.left_behind()
    for each in (subject.limiter, *subject.also):
        await each.aclose()
    await stage.sleep(1)
    assert [] == stage.left_behind()


async def works(stage: Stage) -> None:
    stage.ask(100, 101)
    await stage.done()
    assert {100, 101} <= stage.granted.keys(), f"{stage.told}"


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
