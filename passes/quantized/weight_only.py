"""Convert products of float32 rows with matrices that are quantized by blocks of k.

MatMulNBits(x, codes, scales, zeros, bias)      -> FusedGemm over a block-quantized matrix
MatMulNBits(x, …, groups in another order)      -> the same, of Gather(x, columns by group)
MatMul(x, DequantizeLinear(W, scales, zeros))   -> the same; Gemm too; W has 2, 4 or 8 bits

A matrix with a scale for each column, or one for all, has a single block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tracea_graph.ir import Array, DType, Node, TensorSpec, Weight
from tracea_graph.ops.block_quantized import BITS, MAX_BLOCK, BlockQuantized
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import Floats
from tracea_graph.passes.matmul.gemm import gemm_bias, gemm_epilogue, why_not_added
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    only_read_by,
    operand_producer,
)
from tracea_graph.reason_codes import Code, Reason, not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.region import region_of

__all__ = [
    "MATMUL_NBITS",
    "BlockMatrix",
    "DequantizedGemm",
    "MatmulNbits",
    "constants_of",
    "matrix_of_byte_codes",
    "unsupported_blocks",
]

MATMUL_NBITS = "com.microsoft::MatMulNBits"
_INT8_LEVEL = 4
"""Accuracy level at which ONNX Runtime rounds x to int8."""
_INT8_BLOCKS_OF_2_BITS = (32, 64, 128)
"""Block sizes of 2-bit codes for which ONNX Runtime rounds x to int8."""
_ALIGNED = 16
"""The number of codes in a block must be a multiple of this."""
_SIGNED = {DType.I2: 2, DType.I4: 4, DType.I8: 8}
_UNSIGNED = {DType.U2: 2, DType.U4: 4, DType.U8: 8}


@dataclass
class BlockMatrix:
    """A matrix that is quantized in blocks.

    ``codes`` and ``scales`` are the names of the operands that hold it, ``weights`` the new ones
    of them.  ``order`` are the columns of x in the order of the matrix's rows, None if these are
    the same.
    """

    layout: BlockQuantized
    k: int
    n: int
    codes: str
    scales: str
    weights: dict[str, Weight] = field(default_factory=dict)
    order: Array | None = None


class MatmulNbits:
    """Convert a MatMulNBits operator; x is rounded to int8 where ONNX Runtime does that."""

    name = "matmul-nbits"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != MATMUL_NBITS or region.fused:
            return
        made = _stored(graph, region)
        if isinstance(made, str):
            yield Miss(self.name, region.id, made)
            return
        bias = _operand(region, 5)
        if bias and (not is_f32(graph, bias) or graph.spec(bias).shape != (made.n,)):
            yield Miss(self.name, region.id, "its bias is not a float32 vector over the columns")
            return
        params = GemmParams(made.k, made.n, made.layout, bool(bias))
        rows = _rows_in_order(graph, region, made)
        operands = [rows.value, made.codes, made.scales, *([bias] if bias else [])]
        new = fused_region(self.name, params, operands, region.results, [region])
        weights = {**made.weights, **rows.weights}
        yield Proposal(self.name, (region,), (*rows.regions, new), rows.specs, weights)


class DequantizedGemm:
    """Let a matrix product read its constant matrix as codes, instead of a dequantized copy."""

    name = "dequantized-gemm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("MatMul", "Gemm") or region.fused:
            return
        source = operand_producer(graph, region.operands[1], "DequantizeLinear")
        if source is None or graph.weight(source.operands[0]) is None:
            why = unsuited_reason(f"{region.operands[1]!r} is not dequantized from a constant")
            yield Miss(self.name, region.id, why)
            return
        if operand_producer(graph, region.operands[0], "DequantizeLinear") is not None:
            yield Miss(self.name, region.id, unsuited_reason("both operands are dequantized"))
            return
        if (unfit := why_not_added(graph, region)) is not None:
            yield Miss(self.name, region.id, unfit)
            return
        transposed = region.op == "Gemm" and attribute(region, "transB", 0) == 1
        made = _dequantized(graph, region, source, transposed)
        if isinstance(made, str):
            yield Miss(self.name, region.id, made)
            return
        bias = gemm_bias(graph, region, made.n)
        chain, beside = gemm_epilogue(graph, region, bias)
        if chain is not None and bias:
            bias = ""
            chain, beside = gemm_epilogue(graph, region)
        params = GemmParams(made.k, made.n, made.layout, bool(bias), chain)
        left = (region.operands[0], made.codes, made.scales)
        operands = [*left, *([bias] if bias else []), *beside]
        alone = [source] if only_read_by(graph, source.results[0], region) else []
        covered = (*alone, region)
        new = fused_region(self.name, params, operands, region.results, covered)
        yield Proposal(self.name, covered, (new,), weights=made.weights)


def _operand(region: Region, at: int) -> str:
    return region.operands[at] if len(region.operands) > at else ""


def _left(graph: TileGraph, x: str, k: int) -> str | None:
    """Return why x is not float32 rows of ``k`` elements, or None."""
    spec = graph.spec(x)
    if spec.dtype is not DType.F32:
        return Reason("x is not float32", Code.UNSUPPORTED_DTYPE)
    if not spec.shape:
        return Reason("the rank of x is not known to be at least 1", Code.UNKNOWN_SHAPE)
    return None if spec.shape[-1] == k else f"rows of x do not have {k} elements"


# ---- MatMulNBits -----------------------------------------------------------------------------


def _stored(graph: TileGraph, region: Region) -> BlockMatrix | str:
    """Return the matrix of a MatMulNBits, or why it cannot be read."""
    defaults = {"K": 0, "N": 0, "bits": 4, "block_size": 0, "accuracy_level": 0}
    given = {name: int(attribute(region, name, v)) for name, v in defaults.items()}  # type: ignore[call-overload]
    k, n, bits, block, level = given.values()
    if (why := _left(graph, region.operands[0], k)) is not None:
        return why
    if (why := unsupported_blocks(bits, block)) is not None:
        return why
    if min(k, n) < 1:
        return f"its matrix of {k} x {n} is empty"
    if attribute(region, "weight_prepacked", 0):
        return "its matrix is prepacked for another kernel (weight_prepacked)"
    stored = constants_of(graph, region, region.operands[1])
    if isinstance(stored, str):
        return stored
    grouped = bool(_operand(region, 4))
    if grouped and (bits != 4 or (stored[2] is not None and stored[2].dtype is DType.U8)):
        return "ONNX Runtime ignores packed zero points, or has no kernel, where rows have groups"
    groups = _operand(region, 4)
    order = _order(graph, groups, k, block)
    if isinstance(order, str):
        return order
    if order is not None:
        codes = _reordered(stored[0], (k, n), BlockQuantized(bits, block), order, groups)
        stored = (codes, *stored[1:])
    made = matrix_of_byte_codes(*stored, (k, n), bits, block)
    if isinstance(made, str):
        return made
    if order is not None:
        made = replace(made, order=order, weights={**made.weights, stored[0].name: stored[0]})
    shared = bits > 2 or block in _INT8_BLOCKS_OF_2_BITS
    int8_rows = level == _INT8_LEVEL and made.layout.zeros != "float" and shared and not grouped
    return replace(made, layout=replace(made.layout, int8_rows=int8_rows))


def unsupported_blocks(bits: int, block: int) -> str | None:
    """Return why codes of ``bits`` bits in blocks of ``block`` codes are unsupported, or None."""
    if bits in BITS and block % _ALIGNED == 0 and 0 < block <= MAX_BLOCK:
        return None
    return f"codes of {bits} bits in blocks of {block} are not supported"


def constants_of(
    graph: TileGraph, region: Region, codes: str
) -> tuple[Weight, Weight, Weight | None] | str:
    """Return codes, scales and zero points, or a reason that names the one that is not constant.

    Scales and zero points are operands 2 and 3.
    """
    beside = _operand(region, 3)
    names = (codes, region.operands[2], *([beside] if beside else []))
    found = [graph.weight(name) for name in names]
    for name, weight in zip(names, found, strict=True):
        if weight is None:
            return not_constant_reason(name)
    data, scales, *zeros = (weight for weight in found if weight is not None)
    return data, scales, zeros[0] if zeros else None


def matrix_of_byte_codes(
    codes: Weight, scales: Weight, zeros: Weight | None, sizes: tuple[int, int], bits: int,
    block: int,
) -> BlockMatrix | str:  # fmt: skip
    """Return a block-quantized matrix whose codes are stored in bytes, or why it is unsupported.

    ``sizes`` are K and N.  The codes of one column are contiguous.
    """
    k, n = sizes
    blocks = -(-k // block)
    if codes.dtype is not DType.U8 or codes.count != n * blocks * block * bits // 8:
        return "its codes are not bytes of the declared sizes"
    if scales.dtype is not DType.F32 or scales.count != n * blocks:
        return "it does not have a float32 scale for each block"
    kind = "middle"
    if zeros is not None:
        kind = "integer" if zeros.dtype is DType.U8 else "float"
        expected = n * -(-blocks * bits // 8) if kind == "integer" else n * blocks
        if zeros.dtype not in (DType.U8, DType.F32) or zeros.count != expected:
            return "it does not have a zero point for each block"
    layout = BlockQuantized(bits, block, kind)

    def load() -> Array:
        factors = np.asarray(scales.load(), np.float32).reshape(n, blocks)
        if zeros is None:
            return factors[None]
        stored = np.asarray(zeros.load())
        if kind == "integer":
            shifts = np.arange(0, 8, bits).astype(np.uint8)
            split = (stored.astype(np.uint8).reshape(n, -1, 1) >> shifts) & (2**bits - 1)
            stored = split.reshape(n, -1)[:, :blocks]
        return np.stack([factors, stored.reshape(n, blocks).astype(np.float32)])

    made = BlockMatrix(layout, k, n, codes.name, _scales_name(codes, scales, zeros))
    if codes.shape != layout.shape(k, n):
        made.codes = f"{codes.name}_by_blocks"
        made.weights[made.codes] = Weight(
            made.codes, DType.U8, layout.shape(k, n),
            lambda: np.asarray(codes.load()).reshape(layout.shape(k, n)),
        )  # fmt: skip
    made.weights[made.scales] = Weight(made.scales, DType.F32, layout.scales_shape(k, n), load)
    return made


def _scales_name(codes: Weight, scales: Weight, zeros: Weight | None) -> str:
    """Return the name of an array of scales and zero points, which several matrices may share."""
    return "_of_".join((*([zeros.name] if zeros else []), scales.name, codes.name))


def _order(graph: TileGraph, name: str, k: int, block: int) -> Array | str | None:
    """Return the rows of the matrix by the groups of ``name``, or why these are no blocks.

    Returns None if the rows are in order already.
    """
    if not name:
        return None
    weight = graph.weight(name)
    if weight is None:
        return not_constant_reason(name)
    groups = np.asarray(weight.array()).ravel()[:k]
    if not np.array_equal(np.sort(groups), np.arange(k) // block):
        return "its groups do not have the sizes of blocks"
    order = np.argsort(groups, kind="stable")
    return None if np.array_equal(order, np.arange(k)) else order


def _reordered(
    codes: Weight, sizes: tuple[int, int], layout: BlockQuantized, order: Array, groups: str
) -> Weight:
    """Return codes whose row i is row ``order[i]`` of the given ones; ``groups`` is its source."""
    k, n = sizes
    shape = layout.shape(k, n)
    if codes.dtype is not DType.U8 or codes.count != math.prod(shape):
        return codes

    def load() -> Array:
        rows = layout.unpacked(np.asarray(codes.load()).reshape(shape))
        return layout.packed(np.pad(rows[:, order], ((0, 0), (0, rows.shape[1] - k))))

    return Weight(f"{codes.name}_by_{groups}", DType.U8, shape, load)


@dataclass
class _RowsInOrder:
    """The rows to multiply, and what makes them of those that an operator reads."""

    value: str
    regions: tuple[Region, ...] = ()
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)


def _rows_in_order(graph: TileGraph, region: Region, made: BlockMatrix) -> _RowsInOrder:
    """Gather the columns of x in the order of the matrix's rows."""
    x, order = region.operands[0], made.order
    if order is None:
        return _RowsInOrder(x)
    spec = graph.spec(x)
    name, places = f"{x}_for_{made.codes}", f"{made.codes}_rows"
    axis = len(spec.shape or ()) - 1
    node = Node("Gather", (x, places), (name,), {"axis": axis}, "", region.node.label)
    gather = region_of(node, 0)
    gather = Region(
        f"{region.id}.in-order", gather.op, gather.operands, gather.results, gather.nodes
    )
    at = Weight(places, DType.I64, order.shape, lambda: order.astype(np.int64))
    return _RowsInOrder(name, (gather,), {name: spec}, {places: at})


# ---- DequantizeLinear ------------------------------------------------------------------------


def _dequantized(
    graph: TileGraph, region: Region, source: Region, transposed: bool
) -> BlockMatrix | str:
    """Return the matrix that a DequantizeLinear makes, or why it cannot be read as codes."""
    stored, scales = graph.weights[source.operands[0]], graph.weight(source.operands[1])
    zeros = graph.weight(_operand(source, 2)) if _operand(source, 2) else None
    bits = {**_SIGNED, **_UNSIGNED}.get(stored.dtype)
    if scales is None or (_operand(source, 2) and zeros is None):
        return not_constant_reason(source.operands[1 if scales is None else 2])
    if bits is None or scales.dtype is not DType.F32:
        return Reason(
            "its matrix does not have integers of 2, 4 or 8 bits, or its scales are not float32",
            Code.UNSUPPORTED_DTYPE,
        )
    if len(stored.shape) != 2 or 0 in stored.shape or attribute(region, "transA", 0):
        return "its constant is no matrix, or its left operand is transposed"
    k, n = stored.shape[::-1] if transposed else stored.shape
    if (why := _left(graph, region.operands[0], k)) is not None:
        return why
    block = _block(source, stored, scales, k, transposed)
    if isinstance(block, str):
        return block
    if zeros is not None and (zeros.dtype is not stored.dtype or zeros.shape != scales.shape):
        return "its zero points do not have the type of its codes and the shape of its scales"
    kind = "middle" if zeros is None and stored.dtype in _SIGNED else "integer"
    layout = BlockQuantized(bits, block, kind)
    apart = f"_by_{block}{'_transposed' if transposed else ''}"
    made = BlockMatrix(
        layout, k, n, f"{stored.name}_codes{apart}", _scales_name(stored, scales, zeros) + apart
    )
    loads = _loads(layout, (k, n), (stored, scales, zeros), transposed)
    made.weights = {
        made.codes: Weight(made.codes, DType.U8, layout.shape(k, n), loads[0]),
        made.scales: Weight(made.scales, DType.F32, layout.scales_shape(k, n), loads[1]),
    }
    return made


def _block(source: Region, stored: Weight, scales: Weight, k: int, transposed: bool) -> int | str:
    """Return the length of blocks along k, or why the scales are not by block or column."""
    size = int(attribute(source, "block_size", 0))  # type: ignore[call-overload]
    axis = int(attribute(source, "axis", 1)) % 2  # type: ignore[call-overload]
    along_k = 1 if transposed else 0
    if size:
        blocks = list(stored.shape)
        blocks[along_k] = -(-k // size)
        if axis != along_k or scales.shape != tuple(blocks):
            return "its blocks are not along k"
        fits = size % _ALIGNED == 0 and size <= MAX_BLOCK
        return size if fits else f"blocks of {size} are not supported"
    whole = k + -k % _ALIGNED
    if whole > MAX_BLOCK:
        return f"sums of {k} products may not fit 32 bits"
    by_column = len(scales.shape) == 1 and axis != along_k
    if scales.count == 1 or (by_column and scales.shape == (stored.shape[1 - along_k],)):
        return whole
    return "its matrix has a scale for each row"


def _loads(
    layout: BlockQuantized,
    sizes: tuple[int, int],
    stored: tuple[Weight, Weight, Weight | None],
    transposed: bool,
) -> tuple[Callable[[], Array], Callable[[], Array]]:
    """Return functions that load the codes and the scales of a dequantized matrix."""
    (k, n), (matrix, scales, zeros), blocks = sizes, stored, layout.blocks(sizes[0])
    shift = layout.middle if matrix.dtype in _SIGNED else 0

    def by_column(weight: Weight) -> Floats:
        """Return one number per block as ``[N, blocks]``."""
        array = np.asarray(weight.load()).astype(np.float32)
        if array.ndim == 2:
            return array if transposed else array.T
        return np.broadcast_to(array.reshape(-1, 1), (n, blocks))

    def load_codes() -> Array:
        numbers = np.asarray(matrix.load()).astype(np.int16) + shift
        rows = numbers if transposed else numbers.T
        return layout.packed(np.pad(rows, ((0, 0), (0, blocks * layout.block - k))))

    def load_scales() -> Array:
        factors = by_column(scales)
        if layout.zeros == "middle":
            return np.ascontiguousarray(factors[None])
        own = np.zeros_like(factors) if zeros is None else by_column(zeros)
        return np.stack([factors, own + np.float32(shift)])

    return load_codes, load_scales
