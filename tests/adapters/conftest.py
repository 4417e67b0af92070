"""Programs of examples/adapters/, imported as their users would."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapters"


@pytest.fixture
def program() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a program by its name, again for each test."""
    names: list[str] = []

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[name] = module  # Django finds its middleware by name
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        del sys.modules[name]
