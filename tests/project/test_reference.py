"""docs/reference.md: the arguments of every class and function, and every method that users call."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import aiorate
import aiorate.redis

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
CATCHERS = {"misplaced", "unknown"}  # which answer mistakes
ENTRY = re.compile(r"^\.\. auto(?:class|function):: ([\w.]+)\n((?:   .*\n|\n)*)", flags=re.MULTILINE)
ENTRIES = dict(ENTRY.findall(PAGE))  # without those that users do not make, which end in ()
FIELDS = {"aiorate.http.Feedback", "aiorate.http.Quota"}  # described at each field
PARTS = {  # for other parts of aiorate
    *("check_shared", "dispatcher", "enter", "enter_at_once", "enter_blocking", "leave", "leave_blocking", "places", "totals", "get"),
    *("available_here", "belong", "cap", "check_used", "correct", "decided_above", "end_lease", "most", "part", "refusals", "settle_lease"),
    *("which_closed", "begin_again"),
}


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_the_page_has_entries() -> None:
    """Otherwise the tests below would check none."""
    assert len(ENTRIES) > 30


@pytest.mark.parametrize("path", sorted(set(ENTRIES) - FIELDS))
def test_every_argument_is_described(path: str) -> None:
    """In the order of the signature, with unit and default."""
    parameters = [] if path == "aiorate.Scheduler" else list(inspect.signature(named(path)).parameters)

    described = re.findall(r"^   :param (\w+): \S", ENTRIES[path], flags=re.MULTILINE)

    assert [name for name in parameters if name not in CATCHERS] == described


@pytest.mark.parametrize("path", sorted(path for path in ENTRIES if inspect.isclass(named(path)) and path != "aiorate.Scheduler"))
def test_every_member_that_is_listed_exists(path: str) -> None:
    """Sphinx says nothing of a member that is gone."""
    listed = re.findall(r"^   :members: (.+)$", ENTRIES[path], flags=re.MULTILINE)
    members = listed[0].split(", ") if listed else []

    assert [] == [name for name in members if not hasattr(named(path), name) and name not in named(path).__annotations__]


@pytest.mark.parametrize("kind", [aiorate.Limiter, aiorate.KeyedLimiter, aiorate.Budget, aiorate.KeyedBudget])
def test_every_method_that_users_call_is_listed(kind: type) -> None:
    """A new one must be described, or be named above as a part."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("aiorate.") and not base.__name__.startswith("NamesOf")]
    public = {name for base in bases for name in vars(base) if not name.startswith("_")}
    (listed,) = re.findall(r"^   :members: (.+)$", ENTRIES[f"aiorate.{kind.__name__}"], flags=re.MULTILINE)

    assert public - PARTS == set(listed.split(", "))
