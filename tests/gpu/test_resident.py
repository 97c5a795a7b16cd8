"""A model of the zoo on tensors in a GPU's memory: the same bits however its launches are ordered.

Compared are plain launches, a graph with programmatic edges, one with full edges, and graphs whose
nodes were given other addresses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.make import make
from tests.backends.resident import compare, compile_resident, planned, written_program
from tests.gpu.device import Device
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.onnx_io import load

pytestmark = [pytest.mark.gpu, pytest.mark.compiler]
SIZES = ((1, 128), (2, 60), (1, 1))


def test_graphs_and_launches_give_the_same_bits(tmp_path: Path) -> None:
    model = load(make("tiny-bert", tmp_path))
    placed, graph = planned(model, "fp16", {"batch": 1, "sequence": 128})
    rng = np.random.default_rng(0)
    feeds = [
        {
            "input_ids": rng.integers(0, 500, size),
            "attention_mask": np.ones(size, np.int64),
            "token_type_ids": np.zeros(size, np.int64),
        }
        for size in SIZES
    ]  # fmt: skip
    file = tmp_path / "program"
    file.write_bytes(written_program(placed, graph, feeds))
    command = compile_resident(placed, GPU, Device().architecture.name, tmp_path)
    found = compare(command, file, 200)
    assert found.runs == 200 * len(SIZES) and not found.differ
    full = compare(command, file, 40, {"TRACEA_CUDA_EDGES": "full"})
    assert not full.differ and full.digest == found.digest
