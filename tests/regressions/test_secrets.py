"""No part of a URL's credentials is in an error, a repr or the log."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback

import pytest
from helpers.driving import LONG, one_loop

from aiorate import EngineUnavailable
from aiorate.redis import RedisLimiter
from aiorate.redis.address import shown

PARTS = ["s3cr", "1234", "t0pp", "w0rd"]


URLS = [
    "redis://:s3cr#t0pp@127.0.0.1:1/0",
    "redis://:s3cr/t0pp@127.0.0.1:1/0",
    "redis://:s3cr?t0pp@127.0.0.1:1/0",
    "redis://:s3cr?t0pp=w0rd@127.0.0.1:1/0",
    "redis://:s3cr[t0pp@127.0.0.1:1/0",
    "redis://:s3cr]t0pp@127.0.0.1:1/0",
    "redis://:[s3cr]t0pp@127.0.0.1:1/0",
    "redis://:s3cr@t0pp@127.0.0.1:1/0",
    "redis://:s3cr:t0pp@127.0.0.1:1/0",
    "redis://:s3cr%t0pp@127.0.0.1:1/0",
    "redis://:s3cr\u2100t0pp@127.0.0.1:1/0",  # NFKC turns it into a/c, with a slash
    "redis://:1234/t0pp@127.0.0.1:1/0",
    "redis://:1234#t0pp@127.0.0.1:1/0",
    "redis://:1234?t0pp@127.0.0.1:1/0",
    "redis://:1234?a=t0pp@127.0.0.1:1/0",
    "redis://s3cr:1234/t0pp@127.0.0.1:1/0",
    "redis://s3cr:t0pp@127.0.0.1:99999/0",
    "redis://s3cr:t0pp@127.0.0.1:w0rd/0",
    "redis://127.0.0.1:1?password=s3cr",
    "redis://127.0.0.1:1?password=s3cr&t0pp=w0rd",
    "redis://127.0.0.1:1?username=me@corp&password=s3cr",
    "redis://:s3cr",
    "127.0.0.1?password=s3cr",
    "127.0.0.1:1@s3cr",
    ":s3cr@127.0.0.1:1",
    "s3cr://127.0.0.1",
    "redis:s3cr@127.0.0.1",
    "http://user:s3cr@127.0.0.1",
    "unix://:s3cr/t0pp@/tmp/none.sock",
    "unix://:s3cr@/tmp/none@1.sock",
    "rediss://:s3cr@127.0.0.1:1",
    "valkey://:s3cr@127.0.0.1:1",
    "valkey://:s3cr#t0pp@127.0.0.1:1",
]


def is_silent(text: str) -> bool:
    """True if no part of a credential is in the text."""
    return not any(part in text for part in PARTS)


def chain(error: BaseException) -> str:
    """Return everything that a program may log of the error, including causes that Python does not show by itself."""
    texts: list[str] = []
    following: BaseException | None = error
    while following is not None:
        texts += [str(following), repr(following), *traceback.format_exception_only(following)]
        following = following.__cause__ or following.__context__
    return "\n".join(texts)


@one_loop
@pytest.mark.parametrize("url", URLS)
async def test_no_part_of_a_password_is_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error "Port could not be cast to integer value as 's3cr'" showed the beginning of a password with a # in it."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises((ValueError, EngineUnavailable)) as caught:
        await RedisLimiter(url, "x", "10/s", grace=0).acquire()

    assert is_silent(chain(caught.value))
    assert isinstance(caught.value, EngineUnavailable) or "a URL such as 'redis://127.0.0.1:6379/0'" in str(caught.value)
    assert is_silent(caplog.text)
    assert is_silent(shown(url))


def test_an_unencoded_password_is_explained() -> None:
    """The error says what to write instead."""
    for url in ("redis://:s3cr#t0pp@host", "redis://:1234/t0pp@host"):
        with pytest.raises(ValueError, match=r"urllib\.parse\.quote\(password, safe=''\)"):
            RedisLimiter(url, "x", "10/s")


@pytest.mark.parametrize("url", ["redis://:s3cr@127.0.0.1:1/0", "redis://:s3cr/t0pp@127.0.0.1:1", "redis://:s3cr#t0pp@127.0.0.1:1"])
def test_the_demo_shows_no_password(url: str) -> None:
    """The command line takes a server's URL too."""
    command = [sys.executable, "-m", "aiorate", "demo", "--processes", "1", "--server", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)

    assert 0 != done.returncode
    assert "--server" in done.stderr
    assert is_silent(done.stdout + done.stderr)
