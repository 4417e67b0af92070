"""Every module is imported in a fresh process, with all warnings as errors: with the extras, and without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aiorate

ABSENT = "aiohttp", "http_sf", "httpx", "httpx2", "hypothesis", "opentelemetry", "pytest", "redis", "rich", "trio", "uvloop"
"""What the extras bring, and what users bring."""
PROGRAM = """
import importlib, pkgutil, sys

for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError

import aiorate

for module in pkgutil.walk_packages(aiorate.__path__, "aiorate.", onerror=print):
    if module.name != "aiorate.__main__":  # the command line
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print(module.name, error)
if "free-threading build" in sys.version:
    assert not sys._is_gil_enabled(), "something switched the GIL on"
"""


def failed(*absent: str) -> list[str]:
    """The modules that cannot be imported, each with the error, where those packages are absent."""
    environment = {**os.environ, "PYTHONPATH": str(Path(aiorate.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *absent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_every_module_is_imported_without_a_warning() -> None:
    """Deprecations of any Python included. A package that is not installed here is the only reason for a module to fail."""
    assert [] == [line for line in failed() if not any(f"'{name}" in line or "pip install" in line for name in ABSENT)]


def test_without_extras_only_what_serves_them_fails() -> None:
    """And each such module says what is missing. Adapters are not among them: they look for their client as they are used."""
    lines = failed(*ABSENT)

    assert lines
    for line in lines:
        assert any(f".{part}" in line.replace("_", "") for part in ("tools.", "testing.", "waiting.trio.", "loops.trio")), line
        assert any(name in line for name in ABSENT), line
