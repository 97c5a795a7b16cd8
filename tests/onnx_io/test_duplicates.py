"""What is computed twice is computed once; what may differ is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto

from tests.onnx_io.samples import (
    equal,
    feeds,
    model,
    node,
    ops,
    read,
    run,
    tensor,
    value,
    verbatim,
)

X, Y = value("x", ["n", 4]), value("y", None)


def left(
    tmp_path: Path,
    nodes: list[NodeProto],
    *tensors: Any,
    outputs: Any = (Y,),
    compare: bool = True,
) -> list[str]:
    """The operators left; the answers are checked."""
    loaded = read(model(nodes, [X], list(outputs), tensors), tmp_path)
    if compare:
        written = verbatim(loaded, tmp_path / "out.onnx")
        given = feeds(loaded.path, {"n": 3})
        assert equal(run(written.model, given), run(loaded.path, given))
    return ops(loaded)


def test_equal_chains_are_one(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "a"), node("Exp", "x", "b"), node("Neg", "a", "c"), node("Neg", "b", "d"),
        node("Mul", "c d", "y"),
    ]  # fmt: skip
    assert left(tmp_path, nodes) == ["Exp", "Neg", "Mul"]


def test_every_result_of_an_operator_is_shared(tmp_path: Path) -> None:
    nodes = [
        node("Split", "x", "a b", axis=1), node("Split", "x", "c d", axis=1),
        node("Add", "a d", "e"), node("Add", "b c", "f"), node("Mul", "e f", "y"),
    ]  # fmt: skip
    assert left(tmp_path, nodes).count("Split") == 1


def test_constants_are_equal_by_content(tmp_path: Path) -> None:
    twice = [node("Add", "x p", "a"), node("Add", "x q", "b"), node("Mul", "a b", "y")]
    row = np.arange(4, dtype=np.float32)
    assert left(tmp_path, twice, tensor("p", row), tensor("q", row)) == ["Add", "Mul"]
    assert left(tmp_path, twice, tensor("p", row), tensor("q", row + 1)) == ["Add", "Add", "Mul"]
    assert left(tmp_path, twice, tensor("p", row), tensor("q", row[None])).count("Add") == 2


DIFFERENT = {
    "attributes": [node("LeakyRelu", "x", "a", alpha=0.1), node("LeakyRelu", "x", "b", alpha=0.2)],
    "order of operands": [node("Sub", "x p", "a"), node("Sub", "p x", "b")],
    "random": [
        node("RandomNormalLike", "x", "a", seed=1.0), node("RandomNormalLike", "x", "b", seed=1.0)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_stays(name: str, tmp_path: Path) -> None:
    nodes = [*DIFFERENT[name], node("Mul", "a b", "y")]
    constants = [tensor("p", np.ones(4, np.float32))] if "p" in str(DIFFERENT[name]) else []
    assert len(left(tmp_path, nodes, *constants, compare=name != "random")) == 3


def test_outputs_keep_their_producers(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "y"), node("Exp", "x", "z"), node("Exp", "x", "a"),
             node("Neg", "a", "w")]  # fmt: skip
    outputs = (Y, value("z", None), value("w", None))
    assert left(tmp_path, nodes, outputs=outputs) == ["Exp", "Exp", "Neg"]


def test_ranges_stay_apart(tmp_path: Path) -> None:
    """ONNX Runtime makes a Slice of a Gather whose range nobody else reads."""
    ends = [tensor(name, i, np.int64) for name, i in (("from", 0), ("to", 3), ("by", 1))]
    nodes = [
        node("Range", "from to by", "a"), node("Range", "from to by", "b"),
        node("Gather", "x a", "c", axis=1), node("Exp", "x", "d"),
        node("Gather", "d b", "e", axis=1), node("Mul", "c e", "y"),
    ]  # fmt: skip
    found = left(tmp_path, nodes, *ends)
    assert found.count("Gather") == 2 and found.count("Range") in (0, 2)
