"""The programs of the how-to guides, as a reader copies them."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx2

__all__ = ["DOCS", "block_with", "blocks", "program_with"]

DOCS = Path(__file__).parents[2] / "docs"


def blocks() -> list[str]:
    """The programs of the how-to guides."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("howto/*.md")))
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", pages, flags=re.DOTALL | re.MULTILINE)
    return found


def block_with(text: str) -> str:
    """The one program of the how-to guides that contains ``text``."""
    (block,) = (block for block in blocks() if text in block)
    return block


def program_with(text: str, network: Any = None) -> dict[str, Any]:
    """The names that the program with ``text`` makes; it is not started.

    ``network``, a coroutine function of a request that returns a response, answers all of its requests with httpx2.
    """
    tree = ast.parse(block_with(text))
    tree.body = [node for node in tree.body if not (isinstance(node, ast.Expr) and ast.unparse(node).startswith("asyncio.run("))]
    namespace: dict[str, Any] = {"__name__": "program"}
    client: Any = httpx2.AsyncClient
    if network is not None:
        client = partial(httpx2.AsyncClient, transport=httpx2.MockTransport(network))
    with patch.object(httpx2, "AsyncClient", client):
        exec(compile(tree, str(DOCS), "exec"), namespace)  # our own page
    namespace["httpx2"] = SimpleNamespace(**{**vars(httpx2), "AsyncClient": client})
    return namespace
