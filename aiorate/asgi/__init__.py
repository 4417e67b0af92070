"""Rate limits for servers: an ASGI middleware that answers 429, and tells every client what it has left. Imports no framework.

>>> app.add_middleware(RateLimitMiddleware, limiter=KeyedLimiter(lambda client: TokenBucket("5/s", burst=10)))
"""

from __future__ import annotations

from aiorate.asgi._address import client_address
from aiorate.asgi._middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "client_address"]
