"""The head of a run: its machine, interpreter, versions, and the load of the machine."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["head"]


def head(command: str, distributions: Iterable[str]) -> dict[str, object]:
    """The facts above the tables."""
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "load": " ".join(f"{each:.2f}" for each in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown",
        "versions": {name: version for name in distributions if name and (version := _version(name))},
    }


def _version(distribution: str) -> str:
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
    return f"{version} {'compiled' if 'aiorate._meter' in sys.modules else 'pure'}" if distribution == "aiorate" else version


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
