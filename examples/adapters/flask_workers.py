"""A Flask app for several worker processes: a client has one limit of 10 requests a minute, whatever worker it reaches.

The limit is in Redis. Each worker has one connection and one thread for all clients, made after the fork. While the store is down,
everybody is served (``on_unavailable="open"``). ``pip install flask gunicorn "aiorate-limiter[redis]"``, and then:

    gunicorn --workers 4 --threads 8 --preload flask_workers:app
"""

from __future__ import annotations

import os
from math import ceil

from flask import Flask, Response, request

from aiorate import KeyedLimiter, WaitTooLong
from aiorate.redis import RedisLimiter

REDIS = os.environ.get("REDIS", "redis://localhost")


def limit_of(address: str) -> RedisLimiter:
    return RedisLimiter(REDIS, f"client:{address}", "10/min", burst=10, on_unavailable="open", scope="process")


clients: KeyedLimiter[str] = KeyedLimiter(limit_of, scope="process")
app = Flask(__name__)


@app.before_request
def limit() -> Response | None:
    try:
        clients.acquire_blocking(request.remote_addr or "", max_wait=0)  # asks the store once
    except WaitTooLong as error:  # its wait is infinite while the store is down
        wait = ceil(min(error.wait, 60))
        return Response("Too many requests\n", 429, {"Retry-After": str(wait)})
    return None


@app.get("/items")
def items() -> list[str]:
    return ["one", "two"]
