"""Threads that make keys at the same time: a slow function delays callers of its key only, and a circle is refused."""

from __future__ import annotations

import threading
from typing import Any

from helpers.driving import LONG
from helpers.threads import in_thread

from aiorate import KeyedLimiter


def test_a_slow_factory_delays_no_other_key() -> None:
    """Another new key is made meanwhile; the function may even wait for the thread that needs it."""
    calls: list[str] = []

    def factory(key: str) -> str:
        calls.append(key)
        if key == "slow":
            in_thread(lambda: keyed["other"]).result(LONG)
        return "10/s"

    keyed = KeyedLimiter[str](factory, scope="process")

    in_thread(lambda: keyed["slow"]).result(LONG)

    assert ["slow", "other"] == calls


def test_functions_that_use_each_others_keys_end() -> None:
    """Two threads, each in a function that then needs another key of the other KeyedLimiter."""
    both = threading.Barrier(2, timeout=LONG)

    def meet(key: str) -> None:
        if key in ("ann", "ops"):
            both.wait()

    def user(key: str) -> str:
        meet(key)
        if key == "ann":
            teams["dev"]
        return "10/s"

    def team(key: str) -> str:
        meet(key)
        if key == "ops":
            users["bob"]
        return "10/s"

    users, teams = KeyedLimiter[str](user, scope="process"), KeyedLimiter[str](team, scope="process")
    made = [in_thread(lambda: users["ann"]), in_thread(lambda: teams["ops"])]

    assert [future.result(LONG) for future in made] == [users["ann"], teams["ops"]]


def test_a_circle_of_keys_between_threads_is_refused() -> None:
    """At least one of two threads that would wait for each other; both keys can be made later."""
    both, first = threading.Barrier(2, timeout=LONG), ["a", "b"]

    def shared(key: str) -> Any:
        if key not in first:
            return None
        first.remove(key)
        both.wait()
        return keyed["b" if key == "a" else "a"]

    keyed = KeyedLimiter[str](lambda key: "10/s", shared=shared, scope="process")
    made = [in_thread(lambda key=key: keyed[key]) for key in "ab"]  # type: ignore[misc]
    errors = [future.exception(LONG) for future in made]

    assert any(isinstance(error, ValueError) and "cannot share itself" in str(error) for error in errors)
    assert keyed["a"] is not keyed["b"]
    assert 2 == len(keyed)


def test_many_threads_make_keys_at_once() -> None:
    """More than keys may be nested."""
    both = threading.Barrier(70, timeout=LONG)
    keyed = KeyedLimiter[int](lambda key: both.wait() * 0 + 1, scope="process")
    made = [in_thread(lambda key=key: keyed[key]) for key in range(70)]  # type: ignore[misc]

    for future in made:
        future.result(LONG)
    assert 70 == len(keyed)
