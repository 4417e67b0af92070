"""A limiter for ``requests``: an adapter of the session, which waits before each request and heeds what responses say.

Redirects are requests too, and take a permit each. Retries of urllib3 (``max_retries=``) happen below the adapter and take none, so
repeat requests above the session, as ``get()`` does. ``pip install requests``.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from aiorate import Limiter, TokenBucket
from aiorate.http import read_feedback

limiter = Limiter(TokenBucket("10/1.1s", burst=1), scope="process")  # for 10 per second, with a margin


class LimitedAdapter(HTTPAdapter):
    def __init__(self, limiter: Limiter, **options: Any) -> None:
        super().__init__(**options)
        self.limiter = limiter

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        self.limiter.acquire_blocking()  # in line with all threads
        response = super().send(request, *args, **options)
        self.limiter.observe(read_feedback(response.status_code, response.headers))  # a 429 pauses all threads
        return response


def make_session() -> requests.Session:
    session = requests.Session()  # one for each thread; they share the limiter
    session.mount("https://", LimitedAdapter(limiter))
    session.mount("http://", LimitedAdapter(limiter))
    return session


def get(url: str) -> requests.Response:
    with make_session() as session:
        for _ in range(5):
            response = session.get(url, timeout=10)
            if response.status_code not in (429, 503):
                break
    return response


def main(url: str) -> None:
    begin = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(get, [url] * 15))
    refused = limiter.statistics().granted - len(answers)
    print(f"{len(answers)} answers in {time.monotonic() - begin:.1f} s, {refused} refused")


if __name__ == "__main__":
    main("https://httpbin.org/get")
