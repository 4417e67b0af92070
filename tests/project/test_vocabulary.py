"""The pages and examples write things in one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"))
    if path.parent.name != "_build"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_the_type_of_the_keys(page: Path) -> None:
    """Of a lambda, a type checker learns it from ``users: KeyedLimiter[str] = ...`` alone, and asks for an annotation without.

    In one line, ``KeyedLimiter[str](...)`` looks like a link of a page.
    """
    text = page.read_text(encoding="utf-8")

    assert not re.findall(r"^ *\w+ = Keyed(?:Limiter|Budget)\(\s*lambda.*", text, flags=re.MULTILINE)
    assert not re.findall(r"Keyed(?:Limiter|Budget)\[\w+\]\(.+", text)
