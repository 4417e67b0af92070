"""A reentrant lock for ``with`` that no signal handler leaves taken. Knows nothing of what it guards.

CPython 3.14 alone runs signal handlers between the call that takes a lock and the block that releases it: where a handler raised there,
as that of Ctrl-C does, no thread could take the lock again.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info[:2] != (3, 14):
    Lock = threading.RLock
else:
    import _thread

    class Lock(_thread.RLock):
        __slots__ = ()

        def __enter__(self) -> bool:
            for taken in iter(self.acquire, None):
                return taken  # no handler runs after a step of an iterator, nor after a return
            return False  # not reached: the lock is taken, or an error raised
