"""The rows of docs/migrating/slowapi.md: slowapi and aiorate, side by side, each with a clock that is moved by hand.

Both stand in a FastAPI application, which is asked without a server.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Sequence

import fastapi
import pytest
from helpers.migrating import BEGINS, Row, check_pairs, each_row, rows_of
from helpers.slowapi_apps import FIVE, PAGE, Ask, Both, blocks, run
from helpers.stores import RealServer

# slowapi 0.1.10 calls a function that Python 3.14 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning")


SOME = [Ask()] * 7 + [Ask(30, address="192.0.2.2")] * 3 + [Ask(61)] * 7
PASSED = 5 + 3 + 5
TWO_PATHS = [Ask()] * 4 + [Ask(path="/health")] * 4


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(monkeypatch)


Check = Callable[[Row, Both], None]


def middleware(asks: Sequence[Ask], passed: int, *, decorator: str = "") -> Check:
    """An argument of slowapi's Limiter; the right cell is a middleware, or its key."""

    def check(row: Row, both: Both) -> None:
        limited = "limits=" in row.theirs[0]
        both.make_theirs(row.theirs[0], middleware=limited)
        both.route(both.theirs, "" if limited else decorator)
        made = row.ours[0]
        both.ours_in(made if made.startswith("Rate") else f"RateLimitMiddleware(app, clients, {made})")
        both.agree(*asks, passed=passed)
        if len(row.ours) > 1:  # another way to write the same
            both.make_theirs(row.theirs[0], middleware=limited)
            both.route(both.theirs)
            both.ours.names["clients"] = both.ours.call(FIVE)
            app = both.ours.names["app"] = fastapi.FastAPI()
            both.route(both.ours)
            both.ours.call(row.ours[1])
            assert app.user_middleware
            both.agree(*asks, passed=passed)

    return check


def decorated(asks: Sequence[Ask], passed: int) -> Check:
    """A decorator; the right cell is an argument of the route, a KeyedLimiter, or the key of a middleware."""

    def check(row: Row, both: Both) -> None:
        both.route(both.theirs, row.theirs[0])
        made = row.ours[0]
        if made.startswith("key="):
            both.route(both.ours, "", f", dependencies=[limited(clients, {made})]")
        elif made.startswith("KeyedLimiter"):
            both.ours.names["clients"] = both.ours.call(made)
            both.route(both.ours, "", ", dependencies=[limited(clients)]")
        else:
            both.route(both.ours, "", f", {made}")
        both.agree(*asks, passed=passed)
        if made.startswith("key="):
            both.make_theirs("")
            both.route(both.theirs, row.theirs[0])
            both.ours.names["clients"] = both.ours.call(FIVE)
            both.ours_in(f"RateLimitMiddleware(app, clients, {made})")
            both.agree(*asks, passed=passed)

    return check


def exempt(row: Row, both: Both) -> None:
    """/health passes, and everything else is limited."""
    both.make_theirs('application_limits=["5/minute"]', middleware=True)
    both.route(both.theirs, "", "", "/search")
    both.route(both.theirs, row.theirs[0], "", "/health")
    both.ours_in(f"RateLimitMiddleware(app, clients, {row.ours[0]})")
    both.agree(*[Ask()] * 7, *[Ask(path="/health")] * 7, passed=12)


def headers(row: Row, both: Both) -> None:
    """The limit, what is left, and when more is there: theirs as a Unix time, ours in seconds."""
    limit, left, reset = row.theirs[1:]
    policy, q, now, r, t = row.ours
    both.make_theirs(f'application_limits=["5/minute"], {row.theirs[0]}', middleware=True)
    both.route(both.theirs)
    both.ours_in("RateLimitMiddleware(app, clients)")
    one, other = both.ask(*[Ask()] * 7)
    for number, (old, new) in enumerate(zip(one, other, strict=True)):
        told = dict(part.split("=") for part in f"{new.headers[policy]};{new.headers[now]}".split(";") if "=" in part)
        assert old.headers[limit] == told[q] == "5"
        assert old.headers[left] == told[r] == str(max(4 - number, 0))
        assert (60, "60") == (int(float(old.headers[reset]) - both.time.seconds) - 1, told[t])


def refusal(row: Row, both: Both) -> None:
    both.make_theirs('application_limits=["5/minute"]', middleware=True)
    both.route(both.theirs)
    both.ours_in("RateLimitMiddleware(app, clients)")
    one, other = (answers[-1] for answers in both.ask(*[Ask()] * 6))
    assert one.status_code == other.status_code == 429
    assert json.loads(row.theirs[1]) == one.json()
    assert row.ours[0] == other.headers["Content-Type"]
    assert other.json()[json.loads(row.ours[1])] == 429


def strategy(asks: Sequence[Ask], passed: tuple[int, int]) -> Check:
    """As many requests pass with slowapi's strategy and with aiorate's."""

    def check(row: Row, both: Both) -> None:
        both.make_theirs(f'application_limits=["5/minute"], {row.theirs[0]}', middleware=True)
        both.route(both.theirs)
        both.ours.names["clients"] = both.ours.call(row.ours[0])
        both.ours_in("RateLimitMiddleware(app, clients)")
        assert passed == tuple([answer.status_code for answer in answers].count(200) for answers in both.ask(*asks))

    return check


def nowhere() -> str:
    """The address of a store that does not listen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{probe.getsockname()[1]}"


def fallback(row: Row, both: Both) -> None:
    """Each process has the whole limit for itself: five at once with slowapi, and an even pace with aiorate."""
    address = nowhere()
    options, store, limiter = (code.replace("redis://localhost:6379", address) for code in (*row.theirs, row.ours[0]))
    limiter = limiter.replace("5/min", "5/h")  # however slow the machine is, none follows the first
    both.make_theirs(f"{options}, {store}")
    both.route(both.theirs, LIMIT)
    both.ours.names["clients"] = both.ours.call(limiter)
    both.route(both.ours, "", ", dependencies=[limited(clients)]")
    assert [5, 1] == [[answer.status_code for answer in answers].count(200) for answers in both.ask(*[Ask()] * 7)]


def reset(row: Row, both: Both) -> None:
    both.route(both.theirs, '@limiter.limit("5/minute")')
    both.route(both.ours, "", ", dependencies=[limited(clients)]")
    for _ in range(2):
        both.agree(*[Ask()] * 7, passed=5)
        both.theirs.call(row.theirs[0])
        both.ours.call(row.ours[0])


LIMIT = '@limiter.limit("5/minute")'
POSTS = [Ask(method="POST")] * 7 + [Ask()] * 7
PAIRS: dict[str, Check] = {
    '`application_limits=["5/minute"]` and `SlowAPIMiddleware`': middleware(SOME + [Ask(200, path="/health")] * 7, PASSED + 5),
    '`default_limits=["5/minute"]` and `SlowAPIMiddleware`: for each path': middleware(SOME + [Ask(61, path="/health")] * 7, PASSED + 5),
    "`key_func=get_remote_address`": middleware(SOME, PASSED, decorator=LIMIT),
    '`key_func=lambda request: request.headers["X-API-Key"]`': middleware(
        [Ask(headers={"X-API-Key": "gold"})] * 7 + [Ask(headers={"X-API-Key": "tin"})] * 2, 7, decorator=LIMIT
    ),
    f"`{LIMIT}`": decorated(SOME, PASSED),
    '`@limiter.limit("3/second; 5/minute")`': decorated([Ask()] * 5 + [Ask(1.5)] * 5 + [Ask(70)] * 5, 3 + 2 + 3),
    '`@limiter.limit(lambda key: "9/minute" if key == "192.0.2.9" else "5/minute")`': decorated(
        [Ask()] * 10 + [Ask(address="192.0.2.9")] * 10, 14
    ),
    '`@limiter.limit("5/minute", cost=2)`': decorated(SOME, 2 + 2 + 2),
    '`@limiter.limit("5/minute", per_method=True)`': decorated(POSTS, 10),
    '`@limiter.limit("5/minute", methods=["POST"])`': decorated(POSTS, 5 + 7),
    '`@limiter.limit("5/minute", exempt_when=lambda request: "X-Internal" in request.headers)`': decorated(
        [Ask()] * 7 + [Ask(headers={"X-Internal": "1"})] * 7, 5 + 7
    ),
    '`@limiter.shared_limit("5/minute", scope="search")` on several routes': decorated(TWO_PATHS, 5),
    "`@limiter.exempt`": exempt,
    "`enabled=False`": middleware(SOME, len(SOME), decorator=LIMIT),
    "`headers_enabled=True`: `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`": headers,
    '`_rate_limit_exceeded_handler`, which answers 429 with `{"error": "Rate limit exceeded: 5 per 1 minute"}`': refusal,
    '`strategy="moving-window"`': strategy([Ask()] * 3 + [Ask(50)] * 3 + [Ask(65)] * 9, (8, 8)),
    '`strategy="fixed-window"`, the default': strategy([*[Ask(20)] * 7, *[Ask(80.5)] * 7], (10, 10)),
    "`limiter.reset()` in tests": reset,
    '`in_memory_fallback_enabled=True` with `storage_uri="redis://localhost:6379"`': fallback,
}
STORE = '`storage_uri="redis://localhost:6379"`'


@each_row(PAGE, but=(STORE,))
def test_row(row: Row, both: Both) -> None:
    """The two cells do the same, as far as the row says."""
    PAIRS[row.left](row, both)


def test_windows_of_the_clock_are_not_those_of_slowapi(both: Both) -> None:
    """The row of fixed windows: one begins with the first request, the other with the minute."""
    row = next(row for row in rows_of(PAGE) if "fixed-window" in row.left)
    to_the_minute = 60 - BEGINS % 60
    asks = [Ask(to_the_minute - 5)] * 7 + [Ask(to_the_minute + 5)] * 7

    strategy(asks, (5, 10))(row, both)


def test_a_store_that_processes_share(store: RealServer, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a store: two applications let five requests pass together."""
    row = next(row for row in rows_of(PAGE) if row.left == STORE)
    options, limiter = (code.replace("redis://localhost:6379", store.url).replace("5/min", "5/h") for code in (row.theirs[0], row.ours[0]))
    passed = [0, 0]
    for number in range(8):
        both.make_theirs(options)
        both.route(both.theirs, '@limiter.limit("5/hour")')  # however slow the machine is
        both.ours.names["clients"] = both.ours.call(limiter)
        both.ours.names.pop("app", None)
        both.route(both.ours, "", ", dependencies=[limited(clients)]")
        one, other = both.ask(Ask())
        assert [200 if number < 5 else 429] * 2 == [one[0].status_code, other[0].status_code]
        passed[0] += one[0].status_code == 200
        passed[1] += other[0].status_code == 200
    assert [5, 5] == passed


@pytest.mark.parametrize("number", range(len(blocks())))
def test_programs_of_the_page_print_what_they_say(number: int) -> None:
    """The block that needs slowapi is marked ``py``, so that the default tests, which do not have it, leave it to this one."""
    program = blocks()[number]
    promised = re.search(r"^asyncio\.run\(.*?\) *# (.+)", program, flags=re.MULTILINE)

    assert promised is not None
    assert promised[1] in run(program)[1].splitlines()


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, {**PAIRS, STORE: test_a_store_that_processes_share})


# What the page says below the table.


def test_limits_of_functions_of_one_name_add_up(both: Both) -> None:
    """With slowapi each request then takes two."""
    both.route(both.theirs, LIMIT, "", "/search")
    both.route(both.theirs, LIMIT, "", "/search")
    both.route(both.ours, "", ", dependencies=[limited(clients)]")

    one, other = ([answer.status_code for answer in answers].count(200) for answers in both.ask(*[Ask()] * 7))

    assert (2, 5) == (one, other)


def test_slowapi_sends_retry_after_with_every_answer(both: Both) -> None:
    """The middleware sends it with a refusal."""
    both.make_theirs('application_limits=["5/minute"], headers_enabled=True', middleware=True)
    both.route(both.theirs)
    both.ours_in("RateLimitMiddleware(app, clients)")

    one, other = both.ask(*[Ask()] * 6)

    assert [True] * 6 == ["Retry-After" in answer.headers for answer in one]
    assert [False] * 5 + [True] == ["Retry-After" in answer.headers for answer in other]


def test_the_middleware_counts_paths_without_a_route_too(both: Both) -> None:
    """slowapi lets them pass."""
    both.make_theirs('application_limits=["5/minute"]', middleware=True)
    both.route(both.theirs)
    both.ours_in("RateLimitMiddleware(app, clients)")

    one, other = ([answer.status_code for answer in answers] for answers in both.ask(*[Ask(path="/none")] * 7))

    assert [404] * 7 == one
    assert [404] * 5 + [429] * 2 == other


def test_addresses_of_one_network_are_one_client(both: Both) -> None:
    """With slowapi each has its limit."""
    both.make_theirs('application_limits=["5/minute"]', middleware=True)
    both.route(both.theirs)
    both.ours_in("RateLimitMiddleware(app, clients)")

    asks = [Ask(address=f"2001:db8::{host}") for host in (1, 2) for _ in range(5)]
    one, other = ([answer.status_code for answer in answers].count(200) for answers in both.ask(*asks))

    assert (10, 5) == (one, other)


def test_requests_pass_while_the_store_is_away(both: Both) -> None:
    """What swallow_errors=True is for, and what it does in slowapi 0.1.10."""
    address = nowhere()
    both.make_theirs(f"swallow_errors=True, storage_uri={address!r}")
    both.route(both.theirs, LIMIT)
    bucket = 'TokenBucket("5/min", burst=5), on_unavailable="open", grace=0'
    both.ours.names["clients"] = both.ours.call(f"KeyedLimiter(lambda client: RedisLimiter({address!r}, client, {bucket}))")
    both.route(both.ours, "", ", dependencies=[limited(clients)]")

    with pytest.raises(AttributeError, match="view_rate_limit"):
        both.ask(Ask())
    both.theirs.names["app"] = both.ours.names["app"]
    both.agree(*[Ask()] * 7, passed=7)
