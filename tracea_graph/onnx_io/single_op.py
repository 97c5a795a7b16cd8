"""Models of one operator with random weights, to plan and tune a problem without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SingleOp"]

_OPSET, _IR = 23, 10
_EPILOGUES = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "gelu": "Gelu"}


class SingleOp:
    """Writes a model of one operator, with an optional elementwise operator behind it.

    The model has the inputs ``x0``, ``x1`` … and the output ``y``, all of float32.
    """

    def __init__(self, epilogue: str = "none") -> None:
        self._epilogue = _EPILOGUES.get(epilogue)
        self._random = np.random.default_rng(0)

    def gemm(self, m: int, n: int, k: int, bias: bool, path: Path) -> None:
        """Write ``[m, k] · [k, n]``, with a bias of ``n`` numbers if asked for."""
        weights = {"w": self._weight((k, n), k)}
        nodes = [helper.make_node("MatMul", ["x0", "w"], ["z" if bias else "r"])]
        if bias:
            weights["b"] = self._weight((n,), 1)
            nodes.append(helper.make_node("Add", ["z", "b"], ["r"]))
        self._write(nodes, [(m, k)], (m, n), weights, path)

    def conv(
        self, x: Sequence[int], filters: Sequence[int], stride: int, pad: int, bias: bool,
        path: Path,
    ) -> None:  # fmt: skip
        """Write a convolution of ``x`` [N, C, H, W] by filters [O, C / groups, kernel, kernel]."""
        out, inner, kernel, _ = filters
        weights = {"w": self._weight(filters, inner * kernel * kernel)}
        if bias:
            weights["b"] = self._weight((out,), 1)
        node = helper.make_node(
            "Conv", ["x0", *weights], ["r"], group=x[1] // inner, strides=[stride] * 2,
            pads=[pad] * 4, kernel_shape=[kernel] * 2,
        )  # fmt: skip
        sides = [(side + 2 * pad - kernel) // stride + 1 for side in x[2:]]
        self._write([node], [tuple(x)], (x[0], out, *sides), weights, path)

    def attention(
        self, batch: int, heads: int, queries: int, keys: int, head: int, causal: bool, path: Path
    ) -> None:
        """Write attention of ``[batch, heads, queries, head]`` over as many heads of keys."""
        node = helper.make_node("Attention", ["x0", "x1", "x2"], ["r"], is_causal=int(causal))
        q, k = (batch, heads, queries, head), (batch, heads, keys, head)
        self._write([node], [q, k, k], q, {}, path)

    def _weight(self, shape: Sequence[int], terms: int) -> np.ndarray:
        numbers = self._random.standard_normal(tuple(shape), dtype=np.float32)
        return numbers / np.float32(np.sqrt(terms))

    def _write(
        self, nodes: list[onnx.NodeProto], inputs: Sequence[tuple[int, ...]],
        output: tuple[int, ...], weights: dict[str, np.ndarray], path: Path,
    ) -> None:  # fmt: skip
        nodes.append(helper.make_node(self._epilogue or "Identity", ["r"], ["y"]))
        named = [
            helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape)
            for i, shape in enumerate(inputs)
        ]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
        tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "problem", named, [result], tensors)
        opsets = [helper.make_opsetid("", _OPSET)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=_IR), path)
