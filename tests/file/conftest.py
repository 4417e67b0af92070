"""A path for a file of limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

collect_ignore_glob = ["*"] if sys.platform == "win32" else []  # there are no locks of files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits"
