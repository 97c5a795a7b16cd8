"""Models of one operator with random weights, to plan and tune a problem without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SingleOpModel"]

_OPSET, _IR, _CONTRIB = 23, 10, "com.microsoft"
_WIDTH = 16
"""Columns of a zero block."""
_EPILOGUES = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "gelu": "Gelu"}


class SingleOpModel:
    """Writes models of one operator, which an optional elementwise operator follows.

    A model has the inputs ``x0``, ``x1`` … and the output ``y``, in float32 unless stated
    otherwise.
    """

    def __init__(self, epilogue: str = "none") -> None:
        self._epilogue = _EPILOGUES.get(epilogue)
        self._random = np.random.default_rng(0)

    def gemm(
        self, m: int, n: int, k: int, bias: bool, path: Path, *, zeros: float = 0, block: int = 1
    ) -> None:
        """Write a product ``[m, k] · [k, n]``; with ``bias``, plus a vector of ``n`` numbers.

        ``zeros`` is the fraction of the weights' blocks that are zero; a block has ``block`` steps
        of k and 16 columns.
        """
        kept = self._random.random((-(-k // block), -(-n // _WIDTH))) >= zeros
        mask = np.kron(kept, np.ones((block, _WIDTH), np.float32))[:k, :n]
        weights = {"w": self._weight((k, n), k) * mask if zeros else self._weight((k, n), k)}
        nodes = [helper.make_node("MatMul", ["x0", "w"], ["z" if bias else "r"])]
        if bias:
            weights["b"] = self._weight((n,), 1)
            nodes.append(helper.make_node("Add", ["z", "b"], ["r"]))
        self._write(nodes, [(m, k)], (m, n), weights, path)

    def integers(self, m: int, n: int, k: int, path: Path) -> None:
        """Write an integer product of uint8 ``[m, k]`` and int8 ``[k, n]``, scaled in float32."""
        weights = {
            "w": self._random.integers(-127, 128, (k, n), np.int8),
            "zero": np.array(128, np.uint8),
            "scale": np.array(1 / (127 * 127 * k), np.float32),
        }
        nodes = [
            helper.make_node("MatMulInteger", ["x0", "w", "zero"], ["sums"]),
            helper.make_node("Cast", ["sums"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["numbers", "scale"], ["r"]),
        ]
        self._write(nodes, [(m, k)], (m, n), weights, path, TensorProto.UINT8)

    def codes(self, m: int, n: int, k: int, block: int, path: Path) -> None:
        """Write a product of ``[m, k]`` and 4-bit ``[k, n]``; each ``block`` of k has a scale."""
        blocks = -(-k // block)
        weights = {
            "w": self._random.integers(0, 256, (n, blocks, block // 2), np.uint8),
            "scale": self._weight((n * blocks,), k) / np.float32(8),
        }
        node = helper.make_node(
            "MatMulNBits", ["x0", "w", "scale"], ["r"], domain=_CONTRIB, K=k, N=n, bits=4,
            block_size=block,
        )  # fmt: skip
        self._write([node], [(m, k)], (m, n), weights, path)

    def chain(self, rows: int, columns: int, operands: int, path: Path) -> None:
        """Write the sigmoid of ``x0·x0 + x1·x0 + …``, elementwise.

        The ``operands`` inputs are tensors ``[rows, columns]``.
        """
        nodes = [helper.make_node("Mul", ["x0", "x0"], ["s0"])]
        for i in range(1, operands):
            nodes.append(helper.make_node("Mul", [f"x{i}", "x0"], [f"p{i}"]))
            nodes.append(helper.make_node("Add", [f"s{i - 1}", f"p{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Sigmoid", [f"s{operands - 1}"], ["r"]))
        shape = (rows, columns)
        self._write(nodes, [shape] * operands, shape, {}, path)

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
        """Write attention of ``heads`` query heads over the same number of key heads.

        Queries are ``[batch, heads, queries, head]``, keys and values ``[batch, heads, keys,
        head]``.
        """
        node = helper.make_node("Attention", ["x0", "x1", "x2"], ["r"], is_causal=int(causal))
        q, k = (batch, heads, queries, head), (batch, heads, keys, head)
        self._write([node], [q, k, k], q, {}, path)

    def _weight(self, shape: Sequence[int], terms: int) -> np.ndarray:
        numbers = self._random.standard_normal(tuple(shape), dtype=np.float32)
        return numbers / np.float32(np.sqrt(terms))

    def _write(
        self, nodes: list[onnx.NodeProto], inputs: Sequence[tuple[int, ...]],
        output: tuple[int, ...], weights: dict[str, np.ndarray], path: Path,
        x_type: int = TensorProto.FLOAT,
    ) -> None:  # fmt: skip
        nodes.append(helper.make_node(self._epilogue or "Identity", ["r"], ["y"]))
        named = [
            helper.make_tensor_value_info(f"x{i}", x_type, shape) for i, shape in enumerate(inputs)
        ]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
        tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "problem", named, [result], tensors)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=_IR), path)
