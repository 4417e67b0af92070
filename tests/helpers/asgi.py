"""An ASGI server that is only a function call: scopes, what an application sent, and applications to limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiorate.http import read_feedback

if TYPE_CHECKING:
    from aiorate.http import Feedback


App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Answer:
    """What an application sent."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def start(self) -> dict[str, Any]:
        return next(message for message in self.messages if message["type"] == "http.response.start")

    @property
    def status(self) -> int:
        return self.start["status"]  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[str, str]:
        """The fields, those of one name joined as a client joins them."""
        joined: dict[str, str] = {}
        for name, value in self.start["headers"]:
            text = value.decode("latin-1")
            joined[name.decode()] = f"{joined[name.decode()]}, {text}" if name.decode() in joined else text
        return joined

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages if message["type"] == "http.response.body")

    @property
    def feedback(self) -> Feedback | None:
        return read_feedback(self.status, self.start["headers"])


def scope_of(address: str = "192.0.2.1", method: str = "GET", path: str = "/", **more: Any) -> dict[str, Any]:
    """The scope of a request."""
    return {"type": "http", "client": (address, 1), "method": method, "path": path, "headers": [], **more}


async def nothing() -> dict[str, Any]:
    """The rest of a request: none."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(app: App, scope: dict[str, Any] | None = None) -> Answer:
    """The answer to one request."""
    answer = Answer()
    await app(scope_of() if scope is None else scope, nothing, answer.send)
    return answer


async def ok(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers every request with 200."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"yes")]})
    await send({"type": "http.response.body", "body": b"ok", "more_body": False})
