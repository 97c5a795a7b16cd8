"""Write a model whose linear layers have zero blocks, to measure block sparsity with.

    python -m models.zero_blocks IN.onnx OUT.onnx --zeros 0.8 --block 16x16 --pattern random

The result computes something else than the input; compare it with itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

__all__ = ["PATTERNS", "block_mask", "with_zero_blocks"]

PATTERNS = ("random", "bands")
_LEAST = 1 << 14
"""Elements below which a matrix stays dense."""


def block_mask(
    shape: tuple[int, int], zeros: float, block: tuple[int, int], pattern: str, seed: int = 0
) -> npt.NDArray[np.bool_]:
    """Return a mask that is true where a ``[K, N]`` matrix keeps its elements.

    Blocks at the edges may be partial.  ``bands`` keeps neighbouring blocks along a diagonal in
    each block column.
    """
    rows, columns = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    if pattern == "bands":
        i, j = np.ogrid[:rows, :columns]
        kept = (i - j * rows // columns) % rows < round((1 - zeros) * rows)
    else:
        order = np.random.default_rng(seed).permutation(rows * columns)
        kept = (order >= round(zeros * rows * columns)).reshape(rows, columns)
    return np.kron(kept, np.ones(block, np.bool_))[: shape[0], : shape[1]]


def with_zero_blocks(
    model: onnx.ModelProto,
    zeros: float,
    block: tuple[int, int] = (16, 16),
    pattern: str = "random",
) -> onnx.ModelProto:
    """Return a copy whose constant matrices of MatMul and Gemm have this share of zero blocks."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    products = [n for n in copy.graph.node if n.op_type in ("MatMul", "Gemm")]
    wanted = {n.input[1] for n in products}
    transposed = {
        n.input[1] for n in products if any(a.name == "transB" and a.i for a in n.attribute)
    }
    for seed, tensor in enumerate(copy.graph.initializer):
        if tensor.name not in wanted or len(tensor.dims) != 2 or np.prod(tensor.dims) < _LEAST:
            continue
        array: npt.NDArray[Any] = numpy_helper.to_array(tensor)
        transpose = tensor.name in transposed
        size = array.shape[::-1] if transpose else array.shape
        mask = block_mask((size[0], size[1]), zeros, block, pattern, seed)
        tensor.CopyFrom(
            numpy_helper.from_array(array * (mask.T if transpose else mask), tensor.name)
        )
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--zeros", type=float, default=0.8)
    parser.add_argument("--block", default="16x16", help="steps of k x columns")
    parser.add_argument("--pattern", choices=PATTERNS, default="random")
    args = parser.parse_args()
    rows, columns = (int(part) for part in args.block.split("x"))
    sparse = with_zero_blocks(onnx.load(args.model), args.zeros, (rows, columns), args.pattern)
    data = f"{args.out.stem}.data"
    onnx.save(sparse, args.out, save_as_external_data=True, location=data, size_threshold=1024)


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
