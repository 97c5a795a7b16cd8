"""Tensors in device memory on a double of the driver: any addresses, in graphs and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.double import DOUBLE, driver
from tests.backends.resident import compare, compile_resident, planned, written_program
from tests.graphs import Net, normal
from tracea_graph.onnx_io import load

pytestmark = pytest.mark.compiler


def block(net: Net) -> list[str]:
    """Build a norm between products: its result is an output, and read later than the input is."""
    x = net.input("x", "batch", 64)
    hidden = net("Relu", net("MatMul", x, net.weight(64, 48)))
    hidden = net("LayerNormalization", hidden, net.weight(48), net.weight(48), axis=-1)
    return [hidden, net("Add", net("MatMul", hidden, net.weight(48, 64)), x)]


def test_tensors_at_changing_addresses_give_the_same_bits(tmp_path: Path) -> None:
    net = Net()
    model = load(net.save(tmp_path / "m.onnx", *block(net)))
    placed, graph = planned(model, "fp16", {"batch": 5})
    feeds = [{"x": normal(rows, 64).astype(np.float32)} for rows in (5, 17)]
    file = tmp_path / "program"
    file.write_bytes(written_program(placed, graph, feeds))
    command = compile_resident(placed, DOUBLE, "sm_90a", tmp_path)
    here = {"LD_LIBRARY_PATH": str(driver())}
    found = compare(command, file, 40, here)
    assert found.runs == 80 and not found.differ
    assert found.updates > 0, "no node of a graph was given another address"
    tensors = 40 * 2 * len((*placed.program.inputs, *placed.program.outputs))
    assert 0 < found.staged < tensors / 2, "aligned tensors are used where they lie"
    full = compare(command, file, 8, {**here, "TRACEA_CUDA_EDGES": "full"})
    assert not full.differ and full.digest == found.digest
