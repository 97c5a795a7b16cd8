"""Fixtures of tests that run programs for a GPU on the processor."""

from __future__ import annotations

import pytest

from tests.backends.double import DOUBLE, driver
from tracea_graph import target


@pytest.fixture
def double_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the GPU's double, and the driver where worker processes look for it."""
    backends: tuple[target.Backend, ...] = (*target.BACKENDS, DOUBLE)
    monkeypatch.setattr(target, "BACKENDS", backends)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver()))
