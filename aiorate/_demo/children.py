"""How the demo starts its child processes: so that Ctrl-C reaches the demo only, which then ends them."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["APART", "apart"]

_CREATE_NEW_PROCESS_GROUP = 0x200  # subprocess has the name on Windows only


def apart(system: str) -> dict[str, Any]:
    """The options of a process that does not get its parent's Ctrl-C. Windows ignores ``start_new_session``."""
    return {"creationflags": _CREATE_NEW_PROCESS_GROUP} if system == "nt" else {"start_new_session": True}


APART = apart(os.name)
