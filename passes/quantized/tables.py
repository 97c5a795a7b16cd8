"""GatherBlockQuantized(table, ids, scales, zeros) -> FusedQuantizedEmbedding.

Rows of a table whose codes lie in bytes.  A table that is also the matrix of a product is stored
once: a row of the table is a column of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ir import DType, Weight
from tracea_graph.ops.block_quantized import BITS, MAX_BLOCK
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.passes.quantized.weight_only import BlockMatrix, byte_codes
from tracea_graph.passes.regions import attribute, fused
from tracea_graph.reasons import Code, Reason, not_constant
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["GATHER_BLOCK_QUANTIZED", "QuantizedEmbedding"]

GATHER_BLOCK_QUANTIZED = "com.microsoft::GatherBlockQuantized"
_ALIGNED = 16


class QuantizedEmbedding:
    """Convert look-ups of rows in a table of bytes, whose blocks lie along the rows."""

    name = "quantized-embedding"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != GATHER_BLOCK_QUANTIZED or region.fused:
            return
        made = _table(graph, region)
        if isinstance(made, str):
            yield Miss(self.name, region.id, made)
            return
        params = QuantizedEmbeddingParams(made.k, made.n, made.layout)
        operands = (made.codes, made.scales, region.operands[1])
        new = fused(self.name, params, operands, region.results, [region])
        yield Proposal(self.name, (region,), (new,), weights=made.weights)


def _table(graph: TileGraph, region: Region) -> BlockMatrix | str:
    """Return the matrix whose columns are the table's rows, or why there is none."""
    defaults = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}
    given = {name: int(attribute(region, name, v)) for name, v in defaults.items()}  # type: ignore[call-overload]
    bits, block, gathered, along = given.values()
    ids = graph.spec(region.operands[1])
    data, scales = _stored(graph, region.operands[0]), graph.weight(region.operands[2])
    beside = region.operands[3] if len(region.operands) > 3 else ""
    zeros = graph.weight(beside) if beside else None
    if data is None or scales is None or (beside and zeros is None):
        return not_constant(region.operands[0 if data is None else 2 if scales is None else 3])
    if ids.dtype not in (DType.I64, DType.I32) or ids.shape is None:
        return Reason("the ids are no integers of known rank", Code.UNSUPPORTED_DTYPE)
    if len(scales.shape) != 2 or gathered != 0 or along % 2 != 1:
        return "it gathers no rows of a matrix with blocks along them"
    if bits not in BITS or block % _ALIGNED or not 0 < block <= MAX_BLOCK:
        return f"it has codes of {bits} bits in blocks of {block}"
    n, blocks = scales.shape
    if data.dtype is not DType.U8 or n < 1 or data.count % n:
        return Reason("its table does not hold codes in bytes", Code.UNSUPPORTED_DTYPE)
    k = data.count // n * 8 // bits
    if -(-k // block) != blocks or k % block:
        return "its rows are no whole blocks"
    return byte_codes(data, scales, zeros, (k, n), bits, block)


def _stored(graph: TileGraph, value: str) -> Weight | None:
    """Return the constant behind a value, whatever its shape."""
    source = graph.producer(value)
    if source is not None and source.op == "Reshape" and not source.fused:
        value = source.operands[0]
    return graph.weight(value)
