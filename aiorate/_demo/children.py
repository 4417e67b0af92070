"""How the demo starts its child processes: so that Ctrl-C reaches the demo only, which then ends them."""

from __future__ import annotations

import os

__all__ = ["NEW_GROUP", "new_group"]


def new_group(system: str) -> int:
    """The ``creationflags`` of a process that does not get its parent's Ctrl-C. Windows needs them: it ignores ``start_new_session``."""
    return 0x200 if system == "nt" else 0  # CREATE_NEW_PROCESS_GROUP, a name that subprocess has on Windows only


NEW_GROUP = new_group(os.name)
