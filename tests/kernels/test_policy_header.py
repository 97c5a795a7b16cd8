"""The header with the policy's tables is that of the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracea_graph.kernels.cpu
from tracea_graph.kernels.activations import ACTIVATIONS
from tracea_graph.kernels.cpu.policy_header import policy_header
from tracea_graph.native_library import ACTIVATIONS as NATIVE

HEADER = Path(tracea_graph.kernels.cpu.__file__).parent / "runtime" / "policy.h"


def test_the_header_is_that_of_the_tables(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        HEADER.write_text(policy_header())
    assert HEADER.read_text() == policy_header(), "run pytest --update-golden"


def test_activations_have_one_order_everywhere() -> None:
    assert ("none", *ACTIVATIONS) == NATIVE
