"""The scripts of the docs folder, which is not a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["script"]

DOCS = Path(__file__).parents[2] / "docs"


def script(name: str) -> ModuleType:
    """Import a script by its name, once."""
    full = f"docs_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, DOCS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[full] = module
    return sys.modules[full]
