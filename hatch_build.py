"""Compiles `aiorate/_cmeter.c`. The extension is optional: without it, aiorate does the same in Python, more slowly.

A wheel with the extension is tagged for its Python and platform; a wheel without it is `py3-none-any`.
An editable install puts the extension beside its source. `AIORATE_PURE=1` leaves it out.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "aiorate/_cmeter.c"
BUILT = f"aiorate/_cmeter{sysconfig.get_config_var('EXT_SUFFIX')}"

# The extension counts in 128 bits, which MSVC and 32-bit platforms do not have. PyPy compiles the Python code itself.
SUPPORTED = sys.implementation.name == "cpython" and sys.platform != "win32" and sys.maxsize > 2**32


def build_extension(folder: str) -> str:
    """Compiles into `folder`, with the compiler and the flags that this Python or the environment (CC, CFLAGS) names.

    Without debug information, which would name the folder of the build: the same source makes the same bytes anywhere.
    """
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise FileNotFoundError(f"{headers} has no Python.h")
    command = build_ext(Distribution({"ext_modules": [Extension("aiorate._cmeter", [SOURCE], extra_compile_args=["-g0"])]}))
    command.build_lib = command.build_temp = folder
    command.ensure_finalized()
    command.run()
    return command.get_outputs()[0]


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        beside_source = Path(self.root, BUILT)
        if version == "editable":
            beside_source.unlink(missing_ok=True)  # compiled from an earlier source
        if os.environ.get("AIORATE_PURE") or not SUPPORTED:
            return
        self.folder = TemporaryDirectory()  # removed with this hook, after the wheel is written
        try:
            built = build_extension(self.folder.name)
        except Exception as error:  # no compiler, no headers, no setuptools, ...: nothing may stop the installation
            self.app.display_warning(f"aiorate is built without its C extension and will be slower: {error}")
            return
        if version == "editable":
            shutil.move(built, beside_source)
        else:
            build_data["force_include"][built] = BUILT
            build_data.update(infer_tag=True, pure_python=False)
