"""The critical section: one thread at a time, deferred calls, and calls that follow it."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from functools import partial
from time import sleep

import pytest
from helpers.driving import LONG
from helpers.platforms import needs_fork
from helpers.threads import call_in_thread, in_thread

from aiorate.waiting.process.section import Section


def test_one_thread_at_a_time() -> None:
    """Sums that are read and written in two steps come out right."""
    section = Section()
    total = [0]

    def add() -> None:
        before = total[0]
        sleep(0)  # gives other threads a chance
        total[0] = before + 1

    def many() -> None:
        for _ in range(200):
            section.run(add)

    for future in [in_thread(many) for _ in range(8)]:
        future.result(LONG)

    assert 1600 == total[0]


def test_a_thread_that_posts_to_itself_finishes_first() -> None:
    """A finalizer interrupts it in the middle."""
    section = Section()
    order: list[str] = []

    def outer() -> None:
        order.append("begin")
        section.post(lambda: order.append("posted"))
        section.command(lambda: order.append("told"))
        order.append("end")

    section.run(outer)

    assert ["begin", "end", "posted", "told"] == order


def test_the_thread_inside_makes_the_calls_of_others() -> None:
    """The poster does not wait."""
    section = Section()
    inside, go_on = threading.Event(), threading.Event()
    by: list[object] = []

    def slow() -> None:
        inside.set()
        assert go_on.wait(LONG)

    holder = in_thread(lambda: (section.run(slow), by.append(threading.current_thread())))
    assert inside.wait(LONG)
    section.post(lambda: by.append(threading.current_thread()))
    assert not by
    go_on.set()
    holder.result(LONG)

    assert 2 == len(by)
    assert by[0] is by[1]


def test_after_the_section_the_lock_is_free() -> None:
    """A call that follows the section may enter it again, in this thread and in others."""
    section = Section()
    seen: list[int] = []

    def after() -> None:
        seen.append(section.run(lambda: 1))
        seen.append(call_in_thread(lambda: section.run(lambda: 2)))

    section.run(section.after, after)

    assert [1, 2] == seen


def test_calls_that_follow_a_section_never_come_inside_it() -> None:
    """A finalizer posts while a call is to follow: the finalizer does not make that call."""
    section = Section()
    order: list[str] = []

    def outer() -> None:
        section.after(lambda: order.append("after"))
        section.post(lambda: order.append("posted"))
        with pytest.raises(RuntimeError, match="interrupted this limiter"):
            section.run(int)
        order.append("end")

    section.run(outer)

    assert ["end", "posted", "after"] == order


def test_a_question_that_decides_nothing_is_allowed_inside() -> None:
    """As repr() in a debugger."""
    section = Section()

    assert 1 == section.run(lambda: section.look(lambda: 1))


def test_an_error_is_the_callers() -> None:
    """And the section is free afterwards."""
    section = Section()
    with pytest.raises(ZeroDivisionError):
        section.run(lambda: 1 / 0)

    assert 1 == call_in_thread(lambda: section.run(lambda: 1))


def test_an_error_of_a_deferred_call_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The thread inside made another call, so the error is not raised there; and the other deferred calls are made."""
    section = Section()
    done: list[int] = []
    with caplog.at_level(logging.ERROR, "aiorate"):
        section.post(lambda: 1 / 0)
        section.run(section.after, lambda: 1 / 0)
        section.run(section.after, lambda: done.append(1))

    assert [1] == done
    assert 2 == len(caplog.records)


def test_it_is_freed() -> None:
    """The list of sections for a fork keeps none of them."""
    section = Section()
    gone = weakref.ref(section)
    del section

    assert gone() is None


def test_after_a_fork_the_lock_of_the_child_is_free() -> None:
    """The threads that held the lock or wait for it, and the deferred calls, are in the parent."""
    section, heard = Section(), list[str]()
    section.on_fork = lambda: heard.append("fork")
    section.hold()
    call_in_thread(lambda: section.post(lambda: heard.append("of the parent")))

    section.reset()

    assert "free" == call_in_thread(lambda: section.run(lambda: "free"))
    assert ["fork"] == heard


def test_calls_deferred_during_a_fork_follow_it() -> None:
    """In the parent, where they were deferred."""
    section, heard = Section(), list[str]()
    section.hold()
    call_in_thread(lambda: section.post(lambda: heard.append("late")))
    assert [] == heard

    section.release()
    section.run(lambda: None)

    assert ["late"] == heard


@needs_fork
@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_holds_every_section_until_the_child_exists() -> None:
    """The child is told and is free to decide; the parent makes the deferred calls; each goes on separately."""
    sections, heard = [Section() for _ in range(3)], list[str]()
    for place, section in enumerate(sections):
        section.on_fork = partial(heard.append, f"fork {place}")
    sections[0].on_fork = None

    child = os.fork()
    if not child:
        told = sorted(heard) == ["fork 1", "fork 2"]
        os._exit(0 if told and [place for place, section in enumerate(sections) if section.run(lambda: True)] == [0, 1, 2] else 1)

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert [] == heard
    assert [1, 1, 1] == [call_in_thread(lambda section=section: section.run(lambda: 1)) for section in sections]


def test_a_fork_inside_a_section_keeps_deferred_calls() -> None:
    """The deciding thread goes on in the child and makes its deferred calls afterwards; those of other threads are in the parent."""
    section, order = Section(), list[str]()

    def decide() -> None:
        section.post(lambda: order.append("put off"))
        section.after(lambda: order.append("after"))
        section.reset()
        order.append("decided")

    section.run(decide)

    assert ["decided", "put off"] == order
