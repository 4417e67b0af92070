"""The compiled meter for tests: the one that is installed, or one that is compiled for this run.

Without a compiler the tests that need it are skipped, or fail if ``$AIORATE_REQUIRE_METER`` is set.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import aiorate
from aiorate._meter import PureLoopCheck, PureMeter

SOURCE = Path(aiorate.__file__).with_name("_cmeter.c")


_checks: dict[type[PureMeter], type[PureLoopCheck]] = {PureMeter: PureLoopCheck}


def check_of(meter: type[PureMeter]) -> PureLoopCheck:
    """What a meter of that kind can be told of a loop."""
    return _checks[meter]()


@cache
def compiled_meter() -> type[PureMeter]:
    """The type. It is there whether `aiorate._meter` takes it or not."""
    try:
        from aiorate._cmeter import LoopCheck, Meter
    except ImportError:
        pass
    else:
        _checks[Meter] = LoopCheck
        return Meter
    try:
        return _compiled()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"the meter is not compiled, and cannot be: {error}"
    if os.environ.get("AIORATE_REQUIRE_METER"):
        pytest.fail(reason)
    pytest.skip(reason)


def _compiled() -> type[PureMeter]:
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = str(Path(folder, f"_cmeter{EXTENSION_SUFFIXES[0]}"))
        options = [*shared, "-fPIC", "-O2", f"-I{sysconfig.get_path('include')}", "-o", path]
        subprocess.run([*command, *options, str(SOURCE)], check=True, capture_output=True)
        spec = spec_from_file_location("aiorate._cmeter", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    meter: type[PureMeter] = module.Meter
    _checks[meter] = module.LoopCheck
    return meter
