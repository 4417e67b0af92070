"""A file that keeps the limits of all processes of one machine. Each decides for itself, under a lock that the kernel releases if it dies.

The file is a page of head, and then levels of 16, 128, 1024, ... pages of records. The record of a name is in one page of some level, by
its hash: in the first where there was room, which is a record that was never used, or one at rest. Nothing moves.

A record is written in one call and within one sector, so a kill leaves it whole; a check sum shows damage. Instants are those of the
monotonic clock. The wall clock counts for windows of the calendar, and for how long the machine was off. The file is not mapped: a mapped
one that somebody empties ends the process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from struct import Struct, pack, unpack_from
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary
from zlib import crc32

from aiorate._errors import EngineUnavailable
from aiorate._rate import NS_PER_SECOND
from aiorate._store.script import HEAD, OF_RATE, OF_WINDOW

if TYPE_CHECKING or find_spec("fcntl"):  # not on Windows
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock


_MAGIC = b"aiorate limits 2"  # the last byte is the number of the format
_FIRST_LEVEL, _GROWTH = 16, 8  # pages
_MOST_NUMBERS = 16  # of the dimensions of one limit
_PAGE, _SIZE = 4096, 256
_EMPTY = bytes(_SIZE)
# The check sum of the rest; the digest of the name; the boot in which it was written, or nothing if only the wall clock counts; the Unix
# time then, and after how many us it is at rest; and the value.
_ABOUT, _WRITE, _CHECK, _NAME, _VALUE = Struct("<4x20s8sdd8xd192x"), Struct("<20s8sdd"), 4, slice(4, 24), 48
_GRACE = NS_PER_SECOND  # how long others may hold the lock; and how often to look whether the file is still there
_QUICK, _TRIES, _NAP = 3, 12, 100e-6  # a decision takes some 20 us
Value = tuple[float, ...]
T = TypeVar("T")
Decide = Callable[["Value | None", float], "tuple[T, Value | None, float]"]
"""From a value, or None for a new one, and the time in us: an answer, the new value or None if it stays, and how many us until it rests."""


class Record:
    """What a process knows of one record. A name has one for each ``kind`` of limit and each number of dimensions."""

    __slots__ = ("at", "digest", "file", "form", "told", "wall")

    def __init__(self, path: str | os.PathLike[str], name: str, kind: str, dimensions: int) -> None:
        self.wall: bool = kind == "window"  # whether it goes by the wall clock
        numbers = dimensions * (OF_WINDOW if self.wall else OF_RATE)
        if numbers > _MOST_NUMBERS:
            raise ValueError(f"a limit in a file has at most {_MOST_NUMBERS // OF_RATE} rates or dimensions, not {dimensions}.")
        self.file: StoreFile = file_of(path)
        self.digest: bytes = blake2b(f"{numbers} {kind} {name}".encode(), digest_size=20).digest()
        self.form: str = f"<{HEAD + numbers}d"  # of its value, packed
        self.at: int = 0  # where it was; 0: nowhere yet
        self.told: Value | None = None  # its value when this process wrote it last


class StoreFile:
    """One file, and its only descriptor in this process."""

    def __init__(self, path: str) -> None:
        self.path: str = path
        self._descriptor = -1
        self._looked_at = 0
        self._whole: set[int] = set()  # pages without a damaged record; 0: the head
        self.forked()

    def close(self) -> None:
        """Close the descriptor until the next question."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close

    def forked(self) -> None:
        """Called in a child process too, which would share its parent's lock with the open file."""
        self._lock = Lock()
        self._busy = 0, 0  # the first and the last try in a row that met another process's lock
        self.close()

    def ask(self, record: Record, now: float, decide: Decide[T], patient: bool) -> T:
        """Decide on the value of a record, when its clock reads ``now``, or when it was last written if that is later.

        ``patient``: try for up to a millisecond. Raises BlockingIOError while another process has the lock: try again a little later.
        Raises EngineUnavailable if the file cannot be used, or once others have had the lock for a second.
        """
        for number in range(_TRIES if patient else _QUICK):
            if number >= _QUICK:
                time.sleep(_NAP)  # not sched_yield(), which hands whole slices to others
            if not self._lock.acquire(timeout=_NAP):  # a signal handler or a finalizer may be in the middle of a question
                continue
            try:
                try:
                    self._open()
                    flock(self._descriptor, LOCK_EX | LOCK_NB)
                    answer = self._decide(record, now, decide)
                    self._busy = 0, 0
                    return answer
                finally:
                    if self._descriptor >= 0:
                        flock(self._descriptor, LOCK_UN)
            except BlockingIOError:
                continue
            except OSError as error:
                raise EngineUnavailable(f"the file of limits {self.path!r} cannot be used: {error.strerror or error}.") from error
            finally:
                self._lock.release()
        reading, (first, last) = time.monotonic_ns(), self._busy
        self._busy = first if reading - last < _GRACE else reading, reading
        if reading - self._busy[0] < _GRACE:
            raise BlockingIOError
        raise EngineUnavailable(f"the file of limits {self.path!r} has been locked by another process for a second. Is one stopped?")

    def _open(self) -> None:
        """Open the file, unless it is open and was that of the path within the last second."""
        reading = time.monotonic_ns()
        if self._descriptor >= 0 and reading - self._looked_at < _GRACE:
            return
        self._looked_at = reading
        with suppress(OSError):  # it is not open, or no longer there
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self.path)):
                return
        self.close()
        self._whole.clear()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)

    def _decide(self, record: Record, now: float, decide: Decide[T]) -> T:
        wall = time.time_ns() / 1000
        data = self._read(record.at, _SIZE) if record.at and 0 in self._whole else _EMPTY
        if data[_NAME] != record.digest:  # new here, or the file was emptied
            self._check_head()
            record.at, data = self._find(record.digest, wall)
        kept: Value | None = None
        if data[_NAME] == record.digest:
            _check(data)
            kept, (_, boot, unix, _, _) = unpack_from(record.form, data, _VALUE), _ABOUT.unpack(data)
            if not record.wall and boot != _BOOT:  # the machine was started since
                kept = (kept[0], now - max(wall - unix, 0.0), *kept[2:])
            if not record.wall:
                now = max(now, kept[1])
        answer, value, keep = decide(kept, now)
        if value is not None:
            new = _WRITE.pack(record.digest, b"" if record.wall else _BOOT, wall, keep) + pack(record.form, *value)
            new = new.ljust(_SIZE - _CHECK, b"\0")
            os.pwrite(self._descriptor, crc32(new).to_bytes(_CHECK, "little") + new, record.at)  # whole, or not at all
            record.told = value
        return answer

    def _find(self, digest: bytes, wall: float) -> tuple[int, bytes]:
        """Where the record is or shall be, and what is there."""
        hashed, room, first, pages = int.from_bytes(digest[:4], "little"), 0, 1, _FIRST_LEVEL
        since_boot = time.monotonic_ns() / 1000
        while True:
            start = _PAGE * (first + hashed % pages)
            page = self._read(start, _PAGE)
            if start not in self._whole:
                for at in range(0, _PAGE, _SIZE):
                    _check(page[at : at + _SIZE])
                self._whole.add(start)
            if (at := page.find(digest) - _NAME.start) % _SIZE == 0:
                return start + at, page[at : at + _SIZE]
            for place, (_, boot, unix, keep, written) in enumerate(_ABOUT.iter_unpack(page) if not room else ()):
                if wall - unix > keep and (boot != _BOOT or since_boot - written > keep):  # at rest by both clocks, or never used
                    room = start + place * _SIZE
                    break
            if page.endswith(_EMPTY):  # never used, nor are the levels below
                return room, self._read(room, _SIZE)
            first, pages = first + pages, pages * _GROWTH

    def _check_head(self) -> None:
        """Write the head of an empty file. Raises OSError if it holds something else, or is a device, which keeps nothing."""
        if not os.pread(self._descriptor, 1, 0):
            os.pwrite(self._descriptor, _MAGIC, 0)
        if os.pread(self._descriptor, len(_MAGIC), 0) != _MAGIC:
            raise OSError(0, "it holds something else, or is of another release of aiorate, and was left as it is")
        self._whole.add(0)

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, at).ljust(size, b"\0")


def _check(data: bytes) -> None:
    if crc32(data[_CHECK:]) != int.from_bytes(data[:_CHECK], "little") and data != _EMPTY:
        raise OSError(0, "it is damaged. Remove it, and all limits in it begin anew")


def _boot() -> bytes:
    """What differs after each start of the machine."""
    text = b""
    with suppress(OSError):
        if sys.platform == "darwin":
            import subprocess

            text = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=False).stdout
        else:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                text = file.read()
    return blake2b(text, digest_size=8).digest()


_BOOT = _boot()
_files: WeakValueDictionary[str, StoreFile] = WeakValueDictionary()


def file_of(path: str | os.PathLike[str]) -> StoreFile:
    """One object per path. Raises RuntimeError on systems without the lock."""
    if "flock" not in globals():
        raise RuntimeError("a limit in a file needs a lock of the kernel that Windows does not have. Use aiorate.redis there.")
    name = os.path.abspath(os.fsdecode(path))
    return _files.get(name) or _files.setdefault(name, StoreFile(name))
