"""The programs of the pages, as a reader copies them."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx

__all__ = ["DOCS", "block_with", "blocks", "program_with"]

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("recipes", "llm", "keys", "serving", "processes", "http")


def blocks(*pages: str) -> list[str]:
    """The programs of these pages, by default of all that have programs to copy."""
    text = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in pages or PAGES)
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return found


def block_with(text: str) -> str:
    """The one program of the pages that contains ``text``."""
    (block,) = (block for block in blocks() if text in block)
    return block


def program_with(text: str, network: Any = None) -> dict[str, Any]:
    """The names that the program with ``text`` makes, with what the page imported before it; it is not started.

    ``network``, a coroutine function of a request that returns a response, answers all of its requests with httpx.
    """
    block = block_with(text)
    (page,) = (each for page in PAGES if block in (each := blocks(page)))
    tree = ast.parse(block)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    needed = [
        node
        for node in ast.parse("\n".join(page[: page.index(block)])).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and used & {alias.asname or alias.name for alias in node.names}
    ]
    body = [node for node in tree.body if not (isinstance(node, ast.Expr) and ast.unparse(node).startswith("asyncio.run("))]
    namespace: dict[str, Any] = {"__name__": "program"}
    client: Any = httpx.AsyncClient
    if network is not None:
        client = partial(httpx.AsyncClient, transport=httpx.MockTransport(network))
    with patch.object(httpx, "AsyncClient", client):
        exec(compile(ast.Module([*needed, *body], []), str(DOCS), "exec"), namespace)  # our own page
    namespace["httpx"] = SimpleNamespace(**{**vars(httpx), "AsyncClient": client})
    return namespace
