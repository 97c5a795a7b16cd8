"""Limits that the encoder and the decoder of GPU plans share."""

import re
from pathlib import Path

import pytest

import tracea_graph
from tracea_graph.kernels.gpu.plan_encoding import LIMITS

_RUNTIME = Path(tracea_graph.__file__).parent / "kernels" / "gpu" / "runtime" / "plan.h"
_NAMES = {
    "words": "kMaxWords", "inputs": "kMaxInputs", "outputs": "kMaxOutputs",
    "symbols": "kMaxSymbols", "sizes": "kMaxSizes", "temps": "kMaxTemps",
    "launches": "kMaxLaunches", "arguments": "kMaxArguments", "alternatives": "kMaxOthers",
}  # fmt: skip


@pytest.mark.parametrize("what", _NAMES)
def test_the_library_takes_what_the_encoder_writes(what: str) -> None:
    found = re.search(rf"\b{_NAMES[what]} = (\d+)(?: << (\d+))?", _RUNTIME.read_text())
    assert found
    assert int(found[1]) << int(found[2] or 0) == LIMITS[what]
