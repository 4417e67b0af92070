"""The programs of tests/mistakes: reads them, and runs one in virtual time."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import inspect
import io
import logging
import shlex
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiorate.cli import main
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PREAMBLE", "Program", "checked_file", "programs", "run"]

FOLDER = Path(__file__).parents[1] / "mistakes" / "programs"

PREAMBLE = """
from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import *
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import aiohttp
import httpx
import httpx2

import aiorate
import aiorate.adaptive
import aiorate.aiohttp
import aiorate.asgi
import aiorate.http
import aiorate.otel
import aiorate.redis
import aiorate.testing
from aiorate import *
from aiorate.adaptive import AdaptiveRate
from aiorate.asgi import RateLimitMiddleware
from aiorate.http import blocking_hooks, hooks, limit_transport, read_feedback
from aiorate.redis import RedisBudget, RedisLimiter

limiter = Limiter("10/s")
everywhere = Limiter("10/s", scope="process")
keyed = KeyedLimiter[str](lambda key: "10/s")
budget = Budget(requests="10/s", tokens="1000/s")
budgets = KeyedBudget[str](lambda key: Budget(requests="10/s", tokens="1000/s"))
URL = "redis://127.0.0.1:1"


async def fetch() -> str:
    return "fetched"


async def app(scope: Any, receive: Any, send: Any) -> None:
    pass
"""


class Program(NamedTuple):
    """A program that a new user may write, and the answers that it must get: lines that begin with "? "."""

    name: str
    source: str
    answers: tuple[str, ...]

    @property
    def checked(self) -> bool:
        """Whether a type checker finds it, instead of a message or beside one."""
        return any(answer in ("mypy", "pyright") for answer in self.answers)


def programs() -> list[Program]:
    """All of them, in the order of their files. A blank line ends each."""
    found = []
    for file in sorted(FOLDER.glob("*.txt")):
        blocks = [block for block in file.read_text(encoding="utf-8").split("\n\n") if not block.startswith("#")]
        for number, block in enumerate(blocks, 1):
            lines = block.strip().splitlines()
            answers = tuple(line[2:] for line in lines if line.startswith("? "))
            source = "\n".join(line for line in lines if not line.startswith("? "))
            if source:
                found.append(Program(f"{file.stem}-{number}", source, answers))
    return found


def run(program: Program) -> list[str]:
    """What the program is answered: its exception, warnings, log records, and what it prints to standard error."""
    if program.source.startswith("$ "):
        return [_command(program.source)]
    told = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: told.append(f"log: {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("aiorate")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            error = _execute(program.source)
            if error is not None:
                told.append("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))
            del error
            gc.collect()  # a coroutine that was never awaited warns when it is freed
    finally:
        logger.removeHandler(handler)
    return told + [f"{warning.category.__name__}: {warning.message}" for warning in caught]


def _execute(source: str) -> Exception | None:
    names: dict[str, Any] = {"__name__": "mistake"}
    exec(PREAMBLE, names)
    try:
        code = compile(source, "mistake.py", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if not code.co_flags & inspect.CO_COROUTINE:
            exec(code, names)
            return None
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            coroutine: Any = eval(code, names)
            runner.run(coroutine)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _command(line: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        code = main(shlex.split(line)[4:])
    return f"exit {code}: {printed.getvalue()}"


def checked_file(chosen: Iterable[Program]) -> tuple[str, dict[str, range]]:
    """A file that has each program in a function, for type checkers; and the lines of each program."""
    lines, places = PREAMBLE.splitlines(), {}
    for program in chosen:
        lines.append(f"async def {program.name.replace('-', '_')}() -> None:")
        begin = len(lines)
        lines += textwrap.indent(program.source, "    ").splitlines()
        places[program.name] = range(begin + 1, len(lines) + 1)
    return "\n".join(lines) + "\n", places
