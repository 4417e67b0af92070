"""Files that cannot be used: each has its error, and stays as it was. And files that were lost, torn, or are of another boot."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aiorate import EngineUnavailable, TokenBucket
from aiorate._store import file as module
from aiorate.file import FileBudget, FileLimiter

HEAD, PAGE, SIZE = 16, 4096, 256


def bucket(path: Path) -> FileLimiter:
    return FileLimiter(path, TokenBucket("1/h", burst=9))


def used(path: Path) -> FileLimiter:
    """A limiter that has written its record twice, and has seven permits left."""
    limiter = bucket(path)
    assert (limiter.try_acquire(), limiter.try_acquire()) == (True, True)
    return limiter


def record(path: Path) -> int:
    """Where the record is: behind the head, the first that is not empty."""
    data = path.read_bytes()
    return next(at for at in range(PAGE, len(data), SIZE) if data[at : at + SIZE].strip(b"\0"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def wait(limiter: FileLimiter) -> None:
    asyncio.run(limiter.acquire())


def damaged(path: Path) -> None:
    used(path)
    overwrite(path, record(path), b"\x5a" * SIZE)


def torn(path: Path) -> None:
    used(path)
    overwrite(path, record(path) + 100, b"\xff")


def of_another_release(path: Path) -> None:
    used(path)
    overwrite(path, HEAD - 1, b"1")


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.mkdir(), "Is a directory"),
    (lambda path: None, "No such file"),
    (lambda path: path.write_text("a diary, and no limits"), "holds something else"),
    (lambda path: path.write_bytes(b"aiorate"), "holds something else"),
    (lambda path: path.write_bytes(bytes(2 * PAGE)), "holds something else"),
    (lambda path: os.mkfifo(path), "Illegal seek"),
    (lambda path: path.symlink_to("/dev/null"), "it holds something else"),
    (lambda path: path.symlink_to(path), "symbolic links"),
    (damaged, "damaged. Remove it"),
    (torn, "damaged. Remove it"),
    (of_another_release, "of another release of aiorate"),
]


def test_a_wrong_file_is_an_error_and_stays_as_it_was(tmp_path: Path) -> None:
    for number, (make, text) in enumerate(WRONG):
        path = tmp_path / f"{number}" / "limits"
        if text != "No such file":
            path.parent.mkdir()
        make(path)
        gc.collect()  # or a limiter that has looked already has it open
        before = path.read_bytes() if path.is_file() else None
        limiter = FileLimiter(path, "1/h")
        for call in (limiter.try_acquire, partial(wait, limiter), limiter.acquire_blocking):
            with pytest.raises(EngineUnavailable, match=text) as caught:
                call()
            assert str(path) in str(caught.value)
            assert isinstance(caught.value.__cause__, OSError)
        assert before == (path.read_bytes() if path.is_file() else None)
        assert limiter.statistics().granted == 0


def test_every_error_of_the_kernel_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To all who wait; afterwards the limiter works on, and no lock is left."""
    codes = [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENOLCK]
    for name, code in [(name, code) for name in ("open", "pread", "pwrite", "flock") for code in codes]:
        path = tmp_path / f"{name}{code}"

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        async def main(name: str = name, code: int = code, path: Path = path, fail: Callable[..., None] = fail) -> None:
            limiter = FileLimiter(path, 1000)
            if name != "open":
                await limiter.acquire()
            with monkeypatch.context() as patched:
                patched.setattr(module if name == "flock" else module.os, name, fail)
                failed = await asyncio.gather(*[limiter.acquire() for _ in range(3)], return_exceptions=True)
            assert [type(error) for error in failed] == [EngineUnavailable] * 3
            assert os.strerror(code) in str(failed[0])
            await asyncio.wait_for(limiter.acquire(), 5)
            await asyncio.wait_for(asyncio.to_thread(FileLimiter(path, 1000).acquire_blocking), 5)

        asyncio.run(main())


def test_a_full_disk(path: Path) -> None:
    """Once there is room, the limit is as it was."""
    import resource  # which Windows does not have

    limiter, limit = used(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (record(path), limit[1]))
    try:
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match=r"space|large"):
                limiter.try_acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, old)
    assert 7 == sum([limiter.try_acquire() for _ in range(9)])


def test_a_file_that_was_removed_or_emptied_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that remembers, with what it remembers."""
    monkeypatch.setattr(module, "_GRACE", 0)  # it looks once a second
    for number, lose in enumerate([Path.unlink, lambda path: os.truncate(path, 0), lambda path: path.replace(tmp_path / "moved")]):
        path = tmp_path / f"{number}"
        limiter = used(path)
        assert limiter.try_acquire(6)
        lose(path)
        assert not limiter.try_acquire(2)
        assert limiter.acquire_blocking() < 1  # not for a moment, in which others may tell more
        assert not bucket(path).try_acquire()
        assert path.stat().st_mode & 0o777 == 0o600
        limiter = FileLimiter(path, "1/h", name="blocking")
        assert limiter.acquire_blocking() < 1
        lose(path)
        assert not limiter.try_acquire(), "what callers that block took is known to those that do not"


def test_a_file_emptied_between_two_looks_has_its_head_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was written behind a hole, and the file was a foreign one to all from then on."""
    path = tmp_path / "limits"
    limiter = used(path)
    os.truncate(path, 0)
    assert limiter.try_acquire()
    monkeypatch.setattr(module, "_GRACE", 0)
    assert (limiter.try_acquire(), bucket(path).try_acquire()) == (True, True)


def test_a_file_put_in_its_place_is_looked_at_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limiter in use went by the place of its record: it wrote into the file of another release, and called any other one damaged."""
    monkeypatch.setattr(module, "_GRACE", 0)
    for name, makes, says in (
        ("of another release", of_another_release, "another release"),
        ("of somebody else", lambda path: path.write_text("mine" * 99_999), "it holds something else"),
        ("fifo", os.mkfifo, "Illegal seek"),
    ):
        path, other = tmp_path / name, tmp_path / f"other {name}"
        limiter = used(path)
        makes(other)
        os.replace(other, path)
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(EngineUnavailable, match=says):
            limiter.try_acquire()
        assert before == (path.read_bytes() if path.is_file() else b"")


def test_after_a_reboot_the_time_that_has_passed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall clock, and if that went back, no time has passed."""
    path, monotonic, wall = tmp_path / "limits", time.monotonic_ns(), time.time_ns()
    used(path).try_acquire(7)
    monkeypatch.setattr(module, "_BOOT", b"another.")
    monkeypatch.setattr("time.monotonic_ns", lambda: monotonic // 2)
    monkeypatch.setattr("time.time_ns", lambda: wall - 10**12)
    assert not bucket(path).try_acquire()
    monkeypatch.setattr("time.time_ns", lambda: wall + 7300 * 10**9)
    assert sum([bucket(path).try_acquire() for _ in range(9)]) == 2


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for args, error, text in (((3, "1/s"), TypeError, "PathLike"), ((tmp_path, ["1/s"] * 9), ValueError, "at most 8")):
        with pytest.raises(error, match=text):
            FileLimiter(*args)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"FileBudget\(tokens\) must be a rate"):
        FileBudget(tmp_path, tokens=["1/s"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a dimension"):
        FileBudget(tmp_path)
    monkeypatch.delattr(module, "flock")
    with pytest.raises(RuntimeError, match="Windows does not have"):
        FileLimiter(tmp_path, 1)
