"""A clock that is stepped, and for budgets, five requests and a hundred tokens, and tasks that reserve them."""

from __future__ import annotations

import pytest
from helpers.calls import Calls
from helpers.driving import SteppedClock

from aiorate import Budget, TokenBucket


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def requests() -> TokenBucket:
    return TokenBucket("1/s", burst=5)


@pytest.fixture
def tokens() -> TokenBucket:
    return TokenBucket("10/s", burst=100)


@pytest.fixture
def budget(clock: SteppedClock, requests: TokenBucket, tokens: TokenBucket) -> Budget:
    return Budget(requests=requests, tokens=tokens, clock=clock)


@pytest.fixture
def calls(budget: Budget, clock: SteppedClock) -> Calls:
    return Calls(budget, clock)
