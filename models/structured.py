"""Write models whose weights have several kinds of structure at once.

    python -m models.structured [NAME…] [-o DIR]

Zero blocks, scattered zeros, dead channels, exact ranks and banded masks stand side by side, or in
one matrix, so that the rules that exploit them compete.  ``models.regret`` plans with these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.make import BUILD
from models.zero_blocks import block_mask

__all__ = ["STRUCTURED", "make_structured"]

Array = npt.NDArray[Any]
_OPSET, _IR = 17, 8


class _Net:
    """A model under construction; weights are drawn from one seed, in order."""

    def __init__(self, seed: int, **inputs: Sequence[int]) -> None:
        self.random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Array] = {}
        self._inputs = inputs

    def __call__(self, op: str, *operands: str, **attrs: Any) -> str:
        """Add a node and return its result."""
        name = f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, operands, [name], name, **attrs))
        return name

    def weight(self, array: Array) -> str:
        name = f"w{len(self._weights)}"
        self._weights[name] = array.astype(np.float32)
        return name

    def sizes(self, *extents: int) -> str:
        """Return a constant shape."""
        name = f"w{len(self._weights)}"
        self._weights[name] = np.array(extents, np.int64)
        return name

    def normal(self, *shape: int, depth: int = 0) -> Array:
        """Return numbers that keep the variance of what they are multiplied with."""
        scale = (depth or shape[0]) ** -0.5
        return np.asarray(self.random.standard_normal(shape) * scale, np.float32)

    def linear(self, x: str, matrix: Array, bias: bool = True) -> str:
        """Multiply by ``[K, N]`` and add a bias that is nowhere zero."""
        y = self("MatMul", x, self.weight(matrix))
        return self("Add", y, self.weight(0.1 + abs(self.normal(matrix.shape[1])))) if bias else y

    def low_rank(self, k: int, n: int, rank: int) -> Array:
        matrix: Array = np.matmul(self.normal(k, rank), self.normal(rank, n))
        return matrix

    def model(self, result: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "structured",
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in self._inputs.items()
            ],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self._weights.items()],
        )
        opset = helper.make_opsetid("", _OPSET)
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[opset], ir_version=_IR)
        )


def _without_columns(matrix: Array, every: int, first: int = 0) -> Array:
    """Return a matrix ``[K, N]`` with one column in ``every`` zero."""
    matrix = matrix.copy()
    matrix[:, first::every] = 0
    return matrix


def _few_dead() -> onnx.ModelProto:
    """768 → 3072 → 768: zero blocks and 16 dead channels in front of a matrix of rank 64."""
    net = _Net(1, x=(128, 768))
    first = net.normal(768, 3072) * block_mask((768, 3072), 0.8, (32, 16), "random")
    first[:, 512:528] = 0
    hidden = net("Relu", net.linear("x", first))
    return net.model(net.linear(hidden, net.low_rank(3072, 768, 64)))


def _many_dead() -> onnx.ModelProto:
    """768 → 3072 → 768: half of the channels are dead, and the second matrix has rank 160."""
    net = _Net(2, x=(128, 768))
    first = net.normal(768, 3072)
    first[:, net.random.permutation(3072)[:1536]] = 0
    hidden = net("Relu", net.linear("x", first))
    return net.model(net.linear(hidden, net.low_rank(3072, 768, 160)))


def _ranks() -> onnx.ModelProto:
    """Four products: low rank, zero blocks, low rank with zero blocks, and dense."""
    net = _Net(3, x=(96, 1024))
    y = net("Relu", net.linear("x", net.low_rank(1024, 1024, 48)))
    blocks = net.normal(1024, 1024) * block_mask((1024, 1024), 0.7, (16, 16), "bands")
    y = net("Relu", net.linear(y, blocks))
    low = net.low_rank(1024, 1024, 200)
    low[:, block_mask((1, 1024), 0.75, (1, 16), "random")[0] == 0] = 0  # whole columns of blocks
    y = net("Relu", net.linear(y, low))
    return net.model(net.linear(y, net.normal(1024, 256)))


def _transformer() -> onnx.ModelProto:
    """A block of a transformer: a banded mask, a projection of low rank, a feed-forward part with
    zero blocks and dead channels."""
    size, heads, head = 512, 8, 64
    width = heads * head
    net = _Net(4, x=(1, size, width))

    def split(matrix: Array, perm: Sequence[int]) -> str:
        shape = net.sizes(1, size, heads, head)
        return net("Transpose", net("Reshape", net.linear("x", matrix), shape), perm=perm)

    q, v = (split(net.normal(width, width), (0, 2, 1, 3)) for _ in "qv")
    k = split(net.normal(width, width), (0, 2, 3, 1))
    i, j = np.ogrid[:size, :size]
    mask = np.where(abs(i - j) <= 32, np.float32(0), np.finfo(np.float32).min)
    scores = net("Mul", net("MatMul", q, k), net.weight(np.array(head**-0.5)))
    weights = net("Softmax", net("Add", scores, net.weight(mask)), axis=-1)
    seen = net("Transpose", net("MatMul", weights, v), perm=(0, 2, 1, 3))
    seen = net("Reshape", seen, net.sizes(1, size, width))
    x = net("Add", "x", net.linear(seen, net.low_rank(width, width, 32)))
    wide = net.normal(width, 4 * width) * block_mask((width, 4 * width), 0.6, (16, 16), "random")
    hidden = net("Relu", net.linear(x, _without_columns(wide, 8)))
    return net.model(net("Add", x, net.linear(hidden, net.normal(4 * width, width))))


def _decoder() -> onnx.ModelProto:
    """Products of one row: scattered zeros, zero blocks, a rank, dead channels."""
    net = _Net(5, x=(1, 1024))
    scattered = net.normal(1024, 4096) * (net.random.random((1024, 4096)) < 0.3)
    y = net("Relu", net.linear("x", _without_columns(scattered, 4)))
    blocks = net.normal(4096, 1024) * block_mask((4096, 1024), 0.75, (32, 16), "random")
    y = net("Relu", net.linear(y, blocks))
    y = net("Relu", net.linear(y, net.low_rank(1024, 4096, 128)))
    return net.model(net.linear(y, _without_columns(net.normal(4096, 512), 2, 1)))


def _convolutions() -> onnx.ModelProto:
    """Convolutions with dead filters, unused channels, and a depthwise one between two of them."""
    net = _Net(6, x=(1, 32, 56, 56))

    def conv(x: str, filters: Array, pads: int, **attrs: Any) -> str:
        bias = net.weight(0.1 + abs(net.normal(len(filters))))
        side = {"pads": [pads] * 4, "kernel_shape": list(filters.shape[2:])}
        return net("Relu", net("Conv", x, net.weight(filters), bias, **side, **attrs))

    first = net.normal(128, 32, 3, 3, depth=288)
    first[::2] = 0
    y = conv("x", first, 1)
    point = net.normal(256, 128, 1, 1, depth=128)
    point[::8] = 0
    y = conv(y, point, 0)
    y = conv(y, net.normal(256, 1, 3, 3, depth=9), 1, group=256)
    last = net.normal(64, 256, 1, 1, depth=256)
    last[:, 1::4] = 0
    return net.model(conv(y, last, 0))


STRUCTURED: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {
        "few-dead": _few_dead,
        "many-dead": _many_dead,
        "ranks": _ranks,
        "transformer": _transformer,
        "decoder": _decoder,
        "convolutions": _convolutions,
    }
)
"""Builders by name."""


def make_structured(name: str, directory: Path = BUILD) -> Path:
    """Write ``directory/NAME.onnx`` and return its path.  Raises KeyError for an unknown name."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.onnx"
    onnx.save(STRUCTURED[name](), path)
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and write the models asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m models.structured", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", choices=[*STRUCTURED, []], metavar="NAME")
    parser.add_argument("-o", dest="directory", type=Path, default=BUILD, metavar="DIR")
    args = parser.parse_args(argv)
    for name in args.names or STRUCTURED:
        print(make_structured(name, args.directory))


if __name__ == "__main__":
    main()
