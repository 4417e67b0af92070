"""A Django site that refuses a client above 5 requests per second, by a middleware.

``rate_limit`` is what a site needs: put it into a module of yours and name it in MIDDLEWARE, before middlewares that cost something.
The rest is a site in one file. Both WSGI and ASGI run it: it never waits. Behind a proxy REMOTE_ADDR is the proxy's, so take the
address that the proxy passes on, or ``request.user.pk`` after AuthenticationMiddleware. ``pip install django``.
With several worker processes, each would have a budget: flask_workers.py has one limit for all, in Redis.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from aiorate import KeyedLimiter, TokenBucket
from aiorate.asgi import rate_limit_headers

if TYPE_CHECKING:
    from collections.abc import Callable

clients: KeyedLimiter[str] = KeyedLimiter(lambda address: TokenBucket("5/s", burst=10), scope="process")


def rate_limit(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        limiter = clients[request.META["REMOTE_ADDR"]]
        if limiter.try_acquire():
            return get_response(request)
        return HttpResponse("Too many requests\n", status=429, headers=rate_limit_headers(limiter, refused=True))

    return middleware


def items(request: HttpRequest) -> JsonResponse:
    return JsonResponse(["one", "two"], safe=False)


urlpatterns = [path("items", items)]


def main() -> None:
    settings.configure(ROOT_URLCONF=__name__, MIDDLEWARE=[f"{__name__}.rate_limit"], ALLOWED_HOSTS=["*"], SECRET_KEY="none")
    django.setup()
    from django.test import Client

    client = Client()  # without a server
    print(Counter(client.get("/items").status_code for _ in range(12)))


if __name__ == "__main__":
    main()
