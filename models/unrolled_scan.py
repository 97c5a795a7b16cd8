"""Write a state-space model with an unrolled scan: thousands of operators of microseconds.

``python -m models.unrolled_scan OUT.onnx [--layers N] [--steps N]`` writes it like tf2onnx: each
step slices its row out of the sequence, squeezes it, updates the state and unsqueezes the result.
The defaults give 2,512 operators.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["main", "unrolled"]

WIDTH, STATE = 32, 8


@dataclass
class _GraphWriter:
    """Builder that lists operators and constants in the order they are added."""

    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    weights: dict[str, TensorProto] = field(default_factory=dict)

    def add(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add an operator and return its result."""
        name = f"StatefulPartitionedCall/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [f"{name}:0"], name, **attributes))
        return f"{name}:0"

    def ints(self, *values: int) -> str:
        """Return an int64 constant; equal ones are shared."""
        name = "const_" + "_".join(map(str, values))
        self.weights[name] = numpy_helper.from_array(np.asarray(values, np.int64), name)
        return name

    def matrix(self, *shape: int) -> str:
        """Return random weights that preserve the scale of their input."""
        name = f"kernel_{len(self.weights)}"
        array = self.rng.standard_normal(shape) / np.sqrt(shape[0])
        self.weights[name] = numpy_helper.from_array(array.astype(np.float32), name)
        return name

    def row(self, x: str, step: int) -> str:
        """Slice [batch, steps, …] → [batch, …], as tf2onnx writes a strided slice."""
        one = self.add("Slice", x, self.ints(step), self.ints(step + 1), self.ints(1))
        return self.add("Squeeze", one, self.ints(1))


def unrolled(layers: int = 4, steps: int = 52, seed: int = 0) -> ModelProto:
    """Return a model [batch, steps, 32] → [batch, steps, 32]; a layer's step is eleven operators.

    A layer is h = exp(-softplus(x·D))·h + x·B, y = h·C, with a gate and a residual around it.
    """
    writer = _GraphWriter(np.random.default_rng(seed))
    x = "x"
    for _ in range(layers):
        x = _layer(writer, x, steps)
    ends = [
        helper.make_tensor_value_info(v, TensorProto.FLOAT, ["batch", steps, WIDTH])
        for v in ("x", x)
    ]
    graph = helper.make_graph(
        writer.nodes, "tf2onnx", ends[:1], ends[1:], list(writer.weights.values())
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _layer(writer: _GraphWriter, x: str, steps: int) -> str:
    add, inner = writer.add, WIDTH * STATE
    rate = add("Softplus", add("MatMul", x, writer.matrix(WIDTH, inner)))
    decay = add("Exp", add("Neg", rate))
    drive = add("Mul", add("MatMul", x, writer.matrix(WIDTH, inner)), rate)
    read, given = writer.matrix(inner, WIDTH), list[str]()
    state = ""
    for step in range(steps):
        fresh = writer.row(drive, step)
        if state:
            fresh = add("Add", add("Mul", state, writer.row(decay, step)), fresh)
        state = fresh
        gated = add("Mul", add("MatMul", state, read), add("Sigmoid", writer.row(x, step)))
        given.append(add("Unsqueeze", gated, writer.ints(1)))
    return add("Add", add("Concat", *given, axis=1), x)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a state-space model, its scan unrolled.")
    parser.add_argument("output", type=Path, metavar="OUT.onnx")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=52)
    args = parser.parse_args(argv)
    model = unrolled(args.layers, args.steps)
    onnx.save(model, args.output)
    print(f"{args.output}: {len(model.graph.node)} operators")


if __name__ == "__main__":
    main()
