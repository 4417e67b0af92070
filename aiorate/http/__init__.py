"""Limiting httpx2 and httpx: as event hooks of the client, or as a transport around another. Imports neither.

>>> client = httpx2.AsyncClient(event_hooks=hooks(Limiter("100/s")))

Every request waits for its permits before it takes a connection: redirects and authentication challenges too. Hooks leave the
client's own settings (``limits=``, ``http2=``, proxies) in force. Where a retry transport is in use, hooks would count
its retries as one request: use `limit_transport`, innermost.

* ``limiter`` is a `aiorate.Limiter`, or one limiter for each key (`Limiters`), such as a dict.
* ``key(request)`` chooses among those; the default is the origin, such as ``"https://api.example.com:443"``.
* ``cost(request)`` is how many permits a request takes, 1 by default; 0: it is not limited at all.
* ``max_wait`` is how many seconds a request may wait: longer, and it fails at once with `aiorate.WaitTooLong`.

A request may bring its own: ``client.get(url, extensions={"aiorate": {"cost": 7, "max_wait": 2}})``. None of the client's
timeouts covers the wait. What the limiter raises reaches the caller as it is, and is not an ``httpx2.HTTPError``.
"""

from __future__ import annotations

from aiorate.http.hooks import hooks
from aiorate.http.requests import Limiters
from aiorate.http.transport import limit_transport

__all__ = ["Limiters", "hooks", "limit_transport"]
