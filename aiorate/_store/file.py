"""A file that keeps the limits of all processes of one machine. Whoever asks decides itself, by the twin of the script, under a lock of
the kernel: the kernel releases it if the process dies.

The file is a page of head, and then levels of 16, 128, 1024, ... pages of records. The record of a name is in one page of some level, by
its hash: in the first where there was room, which is a record that was never used, or one at rest. Nothing moves.

A record has two copies, which are written in turns: each has a check sum, so that a torn one is seen and the other one holds. Instants
are those of the monotonic clock. The wall clock counts for windows of the calendar, and for how long the machine was off.
Knows nothing of limiters or of loops. It never blocks on the lock, and the file is not mapped: a mapped one that somebody empties ends
the process.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from struct import Struct, pack, unpack_from
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary
from zlib import crc32

from aiorate._errors import EngineUnavailable
from aiorate._rate import NS_PER_SECOND
from aiorate._store.script import HEAD, OF_RATE, OF_WINDOW

_LOCKS = find_spec("fcntl") is not None  # not on Windows
if TYPE_CHECKING or _LOCKS:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock


_MAGIC, _SAME = b"aiorate limits 1", 15  # the first 15 bytes are those of each release, and the last one is the number of the format
_FIRST_LEVEL, _GROWTH, _LEVELS = 16, 8, 7  # pages; 38 million records
_MOST_NUMBERS = 16  # of the dimensions of one limit
_PAGE, _COPY, _PAIR = 4096, 256, 512
_EMPTY = bytes(_PAIR)
# The check sum, and what it is of: the kind of limit, the number of the copy, the digest of the name, when it was written: in which boot,
# and in us of the monotonic and of the wall clock; after how many us it is at rest; and the value.
_READ, _WRITE, _CHECK, _VALUE = Struct("<IIQ16s8sddd192x"), Struct("<IQ16s8sddd"), 4, 64
_GRACE = NS_PER_SECOND  # for which others may hold the lock, and between two looks whether the file is still there
_QUICK, _TRIES, _NAP = 3, 12, 100e-6  # a decision takes some 20 us
About = tuple[Any, ...]
Value = tuple[float, ...]
T = TypeVar("T")
Decide = Callable[["Value | None", float], "tuple[T, Value | None, float]"]
"""Of a value, or None for a new one, and the time in us: an answer; the new value, or None if it stays; after how many us it is at rest."""


class Record:
    """What a process knows of one record, which has the numbers of so many dimensions: of rates, or of windows by the ``wall`` clock."""

    __slots__ = ("at", "digest", "file", "form", "heard", "kind", "told", "wall")

    def __init__(self, path: str | os.PathLike[str], name: str, kind: str, dimensions: int) -> None:
        self.wall: bool = kind == "window"
        numbers = dimensions * (OF_WINDOW if self.wall else OF_RATE)
        if numbers > _MOST_NUMBERS:
            raise ValueError(f"a limit in a file has at most {_MOST_NUMBERS // OF_RATE} rates or dimensions, not {dimensions}.")
        self.file: StoreFile = file_of(path)
        self.digest: bytes = blake2b(name.encode(), digest_size=16).digest()
        self.kind: int = crc32(f"{numbers} {kind}".encode())
        self.form: str = f"<{HEAD + numbers}d"
        """Of its value, packed."""
        self.at: int = 0
        """Where the record was; 0: nowhere yet."""
        self.told: Value | None = None
        """Its value when this process wrote it last, ..."""
        self.heard: float = 0.0
        """... and when, in us."""


class StoreFile:
    """One file, and its only descriptor in this process."""

    def __init__(self, path: str) -> None:
        self.path: str = path
        self._descriptor = -1
        self._looked_at = 0
        self._whole: set[int] = set()  # pages without a damaged record; 0: the head
        self.forked()

    def close(self) -> None:
        """Close the descriptor; the next question opens the file again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close

    def forked(self) -> None:
        """It is new, or in a child process: the lock belongs to the open file, which a child has in common with its parent."""
        self._lock, self._asking = RLock(), False
        self._busy = 0, 0  # the first and the last try in a row that met the lock of another process
        self.close()

    def ask(self, record: Record, now: float, decide: Decide[T], patient: bool) -> T:
        """Decide on the value of a record, when its clock reads ``now``, or when it was written last if that is later.

        ``patient``: try for up to a millisecond. Raises BlockingIOError while another process has the lock, to be tried again a little
        later; and EngineUnavailable for an error of the kernel, for a file that cannot be used, and once others have had it for a second.
        """
        for number in range(_TRIES if patient else _QUICK):
            if patient and number > 1:
                time.sleep(_NAP)  # not sched_yield(), which hands whole slices to others
            try:
                with self._lock:
                    if self._asking:  # a signal handler or a finalizer, in the middle of a question
                        break
                    self._asking = True
                    try:
                        self._open()
                        flock(self._descriptor, LOCK_EX | LOCK_NB)
                        answer = self._decide(record, now, decide)
                        self._busy = 0, 0
                        return answer
                    finally:
                        self._asking = False
                        if self._descriptor >= 0:
                            flock(self._descriptor, LOCK_UN)
            except BlockingIOError:
                continue
            except OSError as error:
                raise EngineUnavailable(f"the file of limits {self.path!r} cannot be used: {error.strerror or error}.") from error
        reading, (first, last) = time.monotonic_ns(), self._busy
        self._busy = first if reading - last < _GRACE else reading, reading
        if reading - self._busy[0] < _GRACE:
            raise BlockingIOError
        raise EngineUnavailable(
            f"the file of limits {self.path!r} has been locked by another process for a second. Is one stopped, as by Ctrl-Z or a debugger?"
        )

    def _open(self) -> None:
        """Open the file, unless it is open and was that of the path within the last second."""
        reading = time.monotonic_ns()
        if self._descriptor >= 0 and reading - self._looked_at < _GRACE:
            return
        self._looked_at = reading
        if self._descriptor >= 0:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), os.stat(self.path)):
                    return
        self.close()
        self._whole.clear()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)

    def _decide(self, record: Record, now: float, decide: Decide[T]) -> T:
        """Read, decide, and write."""
        at, wall, pair, place, about, kept = record.at, time.time_ns() / 1000, b"", 0, None, None
        if at and 0 in self._whole:
            pair = self._read(at, _PAIR)
            place, about = _newest(pair)
        if about is None or about[3] != record.digest:  # somebody may have emptied the file
            self._check_head()
            at, pair = self._find(record.digest, wall)
            place, about = _newest(pair)
        if about is not None and about[3] == record.digest:
            kept = _kept(record, pair, place, about, now, wall)
            if kept is not None and not record.wall:
                now = max(now, kept[1])
        answer, value, keep = decide(kept, now)
        if value is not None:
            number = 1 if about is None else about[2] + 1
            since_boot = time.monotonic_ns() / 1000 if record.wall else now
            data = _WRITE.pack(record.kind, number, record.digest, _BOOT, since_boot, wall, keep) + pack(record.form, *value)
            data = data.ljust(_COPY - _CHECK, b"\0")
            self._write(crc32(data).to_bytes(_CHECK, "little") + data, at + _COPY - place)
            record.at, record.told, record.heard = at, value, now
        return answer

    def _find(self, digest: bytes, wall: float) -> tuple[int, bytes]:
        """Where the record of that name is or shall be, and what is there."""
        hashed, room, first, pages, found = int.from_bytes(digest[:4], "little"), 0, 1, _FIRST_LEVEL, b""
        for _ in range(_LEVELS):
            start = _PAGE * (first + hashed % pages)
            page = self._read(start, _PAGE)
            copies, known = [*_READ.iter_unpack(page)], start in self._whole
            for at, one, other in zip(range(0, _PAGE, _PAIR), copies[::2], copies[1::2], strict=True):
                if not known or digest in (one[3], other[3]):
                    about = _newest(page[at : at + _PAIR])[1]
                    if about is not None and about[3] == digest:
                        return start + at, page[at : at + _PAIR]
                if not room and _rests(one, wall) and _rests(other, wall):  # or it was never used
                    room, found = start + at, page[at : at + _PAIR]
            self._whole.add(start)
            if not copies[-2][2]:  # the last one was never used, nor are the levels below
                break
            first, pages = first + pages, pages * _GROWTH
        if not room:
            raise OSError(0, "it has no room for more names")
        return room, found

    def _check_head(self) -> None:
        """Write the head of an empty file. Raises OSError for one that holds something else."""
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        head = os.pread(self._descriptor, len(_MAGIC), 0)
        if not head:
            self._write(_MAGIC, 0)
        elif head != _MAGIC:
            other = "another release of aiorate uses it" if head[:_SAME] == _MAGIC[:_SAME] else "it holds something else"
            raise OSError(0, f"{other}, and was left as it is")
        self._whole.add(0)

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, at).ljust(size, b"\0")

    def _write(self, data: bytes, at: int) -> None:
        if os.pwrite(self._descriptor, data, at) != len(data):
            raise OSError(0, "there is no space left on its disk")


def _kept(record: Record, pair: bytes, place: int, about: About, now: float, wall: float) -> Value | None:
    """The value of a record, as if the machine had not been started anew since; None: it says nothing any more."""
    _, kind, _, _, boot, _, written, _ = about
    if kind != record.kind:
        if _rests(about, wall):
            return None
        raise OSError(0, "another kind of limit has that name in it. Give each a name of its own")
    value: Value = unpack_from(record.form, pair, place + _VALUE)
    if boot == _BOOT or record.wall:
        return value
    if record.told is not None:
        raise OSError(0, "another machine uses it too, by another clock. Use a file on a local disk")
    return (value[0], now - max(wall - written, 0.0), *value[2:])


def _rests(about: About, wall: float) -> bool:
    """Whether a copy says nothing any more, by both clocks."""
    boot, since_boot, unix, keep = about[4:]
    return bool(wall - unix > keep and (boot != _BOOT or time.monotonic_ns() / 1000 - since_boot > keep))


def _newest(pair: bytes) -> tuple[int, About | None]:
    """The newer sound copy of a record: its place, and what it says; None: none was written. Raises OSError for a damaged record."""
    if pair == _EMPTY:
        return _COPY, None
    one, other = _READ.iter_unpack(pair)
    for place, about in ((_COPY, other), (0, one)) if other[2] > one[2] else ((0, one), (_COPY, other)):
        if about[0] == crc32(pair[place + _CHECK : place + _COPY]):
            return place, about
    if not _EMPTY.startswith((pair[:_COPY], pair[_COPY:])):
        raise OSError(0, "it is damaged. Remove it, and all limits in it begin anew")
    return _COPY, None  # it was torn as the first


def _boot() -> bytes:
    """What differs whenever the machine was started anew."""
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
    """The file of that path. Raises RuntimeError on systems without its lock."""
    if not _LOCKS:
        raise RuntimeError("a limit in a file needs a lock of the kernel that Windows does not have. Use aiorate.redis there.")
    if isinstance(path, str) and (found := _files.get(path)) is not None:  # as the path of all keys but the first
        return found
    name = os.path.abspath(os.fsdecode(path))
    return _files.get(name) or _files.setdefault(name, StoreFile(name))


def _after_fork() -> None:
    for file in list(_files.values()):
        file.forked()


if _LOCKS:
    os.register_at_fork(after_in_child=_after_fork)
