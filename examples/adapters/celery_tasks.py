"""Celery tasks that call an API at most 10 times per second, all workers on all machines together.

Celery's own ``rate_limit`` is for each worker, so N workers send N times as much. Here the limit is in Redis, and a worker process
has one connection and one thread for it, made after the fork. A task that would wait for more than a second goes back to the queue
until its time, so that the worker can run other tasks. ``pip install celery "aiorate-limiter[redis]"``, and then:

    celery -A celery_tasks worker --concurrency 4
    python celery_tasks.py
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from aiorate import WaitTooLong
from aiorate.redis import RedisLimiter

REDIS = os.environ.get("REDIS", "redis://localhost")

app = Celery("celery_tasks", broker=REDIS, backend=REDIS)  # the name of this module
limiter = RedisLimiter(REDIS, "api", "10/s", scope="process")


@app.task(bind=True, max_retries=None)
def call_api(self: Any, number: int) -> float:
    try:
        limiter.acquire_blocking(max_wait=1)
    except WaitTooLong as error:
        raise self.retry(countdown=error.wait) from None
    return time.time()  # requests.get(...)


def main() -> None:
    results = [call_api.delay(number) for number in range(30)]
    called = sorted(result.get(timeout=60) for result in results)
    print(f"{len(called)} calls in {called[-1] - called[0]:.1f} s")


if __name__ == "__main__":
    main()
