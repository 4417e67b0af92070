"""A Flask app that refuses a client above 5 requests per second, and keeps its own calls to another API within 50 per second.

A client that sends too much gets 429 with Retry-After, at once. A call to the other API waits in one line with those of all threads.
A client is an address; behind a proxy, use werkzeug's ProxyFix or the name of an account. ``pip install flask``.
With several worker processes, each would have a budget: flask_workers.py has one limit for all, in Redis.
"""

from __future__ import annotations

from collections import Counter

from flask import Flask, Response, request

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.asgi import rate_limit_headers

clients: KeyedLimiter[str] = KeyedLimiter(lambda address: TokenBucket("5/s", burst=10), scope="process")
upstream = Limiter("50/s", scope="process")

app = Flask(__name__)


@app.before_request
def limit() -> Response | None:
    limiter = clients[request.remote_addr or ""]
    if limiter.try_acquire():
        return None
    return Response("Too many requests\n", 429, rate_limit_headers(limiter, refused=True))


@app.get("/items")
def items() -> list[str]:
    with upstream:
        return ["one", "two"]  # requests.get(...)


def main() -> None:
    client = app.test_client()  # without a server
    print(Counter(client.get("/items").status_code for _ in range(12)))


if __name__ == "__main__":
    main()
