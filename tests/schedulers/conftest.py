"""The two meters."""

from __future__ import annotations

import copyreg

import pytest
from helpers.compiled import compiled_meter

import aiorate._meter
from aiorate._meter import PureMeter, reduced


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> type[PureMeter]:
    """The compiled meter, under the name by which pickles find it."""
    meter = compiled_meter()
    monkeypatch.setattr(aiorate._meter, "Meter", meter)
    copyreg.pickle(meter, reduced)
    return meter


@pytest.fixture(params=["pure", "compiled"])
def kind(request: pytest.FixtureRequest) -> type[PureMeter]:
    meter: type[PureMeter] = PureMeter if request.param == "pure" else request.getfixturevalue("compiled")
    return meter
