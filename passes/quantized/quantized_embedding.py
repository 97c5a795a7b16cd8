"""Convert look-ups in block-quantized tables.

GatherBlockQuantized(table, ids, scales, zeros)    -> FusedQuantizedEmbedding

The table holds its codes in bytes.  A table that is also the matrix of a product is stored once: a
row of the table is a column of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ir import DType
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.passes.quantized.weight_only import (
    BlockMatrix,
    constants_of,
    matrix_of_byte_codes,
    unsupported_blocks,
)
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["GATHER_BLOCK_QUANTIZED", "QuantizedEmbedding"]

GATHER_BLOCK_QUANTIZED = "com.microsoft::GatherBlockQuantized"


class QuantizedEmbedding:
    """Convert look-ups of rows in a block-quantized table with codes in bytes.

    The blocks lie along the rows.
    """

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
        new = fused_region(self.name, params, operands, region.results, [region])
        yield Proposal(self.name, (region,), (new,), weights=made.weights)


def _table(graph: TileGraph, region: Region) -> BlockMatrix | str:
    """Return the matrix whose columns are the table's rows, or why there is none."""
    defaults = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}
    given = {name: int(attribute(region, name, v)) for name, v in defaults.items()}  # type: ignore[call-overload]
    bits, block, gathered, along = given.values()
    ids = graph.spec(region.operands[1])
    stored = constants_of(graph, region, _unshaped(graph, region.operands[0]))
    if isinstance(stored, str):
        return stored
    data, scales, zeros = stored
    if ids.dtype not in (DType.I64, DType.I32) or ids.shape is None:
        return Reason("the ids are not integers of known rank", Code.UNSUPPORTED_DTYPE)
    if len(scales.shape) != 2 or gathered != 0 or along % 2 != 1:
        return "it does not gather rows, or its blocks are not along the rows"
    if (why := unsupported_blocks(bits, block)) is not None:
        return why
    n, blocks = scales.shape
    if data.dtype is not DType.U8 or n < 1 or data.count % n:
        return Reason(
            "its table of embeddings is not stored as bytes of codes", Code.UNSUPPORTED_DTYPE
        )
    k = data.count // n * 8 // bits
    if -(-k // block) != blocks or k % block:
        return "the block size does not divide the length of its rows"
    return matrix_of_byte_codes(data, scales, zeros, (k, n), bits, block)


def _unshaped(graph: TileGraph, value: str) -> str:
    """Return the input of the Reshape that writes ``value``, else ``value`` itself.

    The numbers of codes and scales determine the table's shape.
    """
    source = graph.producer(value)
    return source.operands[0] if source and source.op == "Reshape" and not source.fused else value
