"""Pruned models: at most two of four weights along K, the largest ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.make import make
from models.prune import prune


def _matrices(path: Path) -> dict[str, np.ndarray]:
    model = onnx.load(path)
    read = {node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in read}


def test_two_of_four_weights_stay(tmp_path: Path) -> None:
    dense = _matrices(make("tiny-bert", tmp_path))
    sparse = _matrices(make("tiny-bert-pruned", tmp_path))
    assert sparse.keys() == dense.keys() and len(dense) > 6
    for name, w in dense.items():
        before, after = (a.T.reshape(a.shape[1], -1, 4) for a in (w, sparse[name]))
        kept = after != 0
        assert kept.sum(-1).max() <= 2
        assert np.array_equal(after[kept], before[kept])
        lost = np.where(kept, 0, np.abs(before)).max(-1)
        assert (lost <= np.where(kept, np.abs(before), np.inf).min(-1)).all()


def test_other_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pruned form 'half'"):
        prune(tmp_path / "m.onnx", "half", tmp_path / "n.onnx")
