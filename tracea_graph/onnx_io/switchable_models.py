"""A copy of a model in which changes to its products can be switched on one by one.

    y = MatMul(x, W)    ->    y = MatMul(x, W) + switches[i] · MatMul(x, D)

Conv(x, W) and Gather(W, x) are changed in the same way, including linear operators after them.
``switches`` is an additional input; zeros restore the original model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

__all__ = ["SWITCHES", "SwitchableChange", "write_switched"]

SWITCHES = "tracea_switches"


@dataclass(frozen=True)
class SwitchableChange:
    """One change to a model: the result of ``op`` on ``x`` and ``delta`` is added to ``result``.

    ``switch`` is the index of the model's switch for this change: 1 adds it, 0 does not.
    """

    switch: int
    x: str
    result: str
    delta: npt.NDArray[np.floating[Any]]
    op: str = "MatMul"
    attrs: Mapping[str, Any] = field(default_factory=dict)


def write_switched(model: Path, changes: Iterable[SwitchableChange], out: Path) -> None:
    """Write a copy of ``model`` in which each change can be switched on and off.

    The tensors are in a file beside ``out``.  Raises ValueError for a change to a value that no
    node computes.
    """
    proto = onnx.load(model)
    graph = proto.graph
    at = {v: i for i, node in enumerate(graph.node) for v in node.output}
    added: dict[int, list[NodeProto]] = {}
    count = 0
    for change in changes:
        if change.result not in at:
            raise ValueError(f"no operator writes {change.result!r}")
        index = at[change.result]
        name = f"{SWITCHES}_{change.result}_{change.switch}"
        outputs = graph.node[index].output
        outputs[list(outputs).index(change.result)] = f"{name}_plain"
        delta = numpy_helper.from_array(np.asarray(change.delta, np.float32), f"{name}_delta")
        number = numpy_helper.from_array(np.array(change.switch, np.int64), f"{name}_index")
        graph.initializer.extend((delta, number))
        reads = [change.x, delta.name][:: -1 if change.op == "Gather" else 1]
        added[index] = [
            helper.make_node(change.op, reads, [f"{name}_change"], **change.attrs),
            helper.make_node("Gather", [SWITCHES, number.name], [f"{name}_on"]),
            helper.make_node("Mul", [f"{name}_change", f"{name}_on"], [f"{name}_part"]),
            helper.make_node("Add", [f"{name}_plain", f"{name}_part"], [change.result]),
        ]
        count = max(count, change.switch + 1)
    nodes = [n for i, node in enumerate(graph.node) for n in (node, *added.get(i, ()))]
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(SWITCHES, TensorProto.FLOAT, [count]))
    onnx.save(
        proto, out, save_as_external_data=True, location=f"{out.name}.data", size_threshold=1024
    )
