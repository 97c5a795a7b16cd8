"""Matmul of one row by a matrix stored as [N, K], in fp16 and bf16: the matrix is read once.

The time is that of reading the matrix, so blocks hold many copies in flight, and start them before
the kernel in front of them ends.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import combine, product
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES, chain_of, views_by_operand
from tracea_graph.kernels.gpu.launch import Launch, constant_buffer_flag, i32, late, pointer
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP
from tracea_graph.kernels.gpu.tile_choice import H100_SMS
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = [
    "COLUMNS",
    "crowding",
    "launch",
    "name",
    "parameters",
    "refusal",
    "shared",
    "shared_bytes",
    "warps_of_tiles",
]

COLUMNS = 16
"""Columns that the warps of a block compute at a time."""
_STEPS, _CHUNK, _VECTOR, _STAGED = 128, 4096, 8, 32 << 10
"""Steps and bytes of a chunk, numbers that x is copied by, and its most bytes in shared memory."""
_LEAST_BYTES = 4 << 20
"""Least bytes of a matrix for which reading it takes longer than a launch."""
_OF_AN_SM, _RESERVED = 228 << 10, 1 << 10
"""Bytes of shared memory of an SM of the GPUs whose blocks may have the longest rings, and of it
those that the system adds to a block's.
"""


def warps_of_tiles(chunks: int, warps: int) -> tuple[int, int]:
    """Return how many tiles a block computes at a time, and the warps that share one's depth."""
    each = min(warps, chunks)
    return warps // each, each


def _chunks(depth: int) -> int:
    return -(-depth // _STEPS)


def refusal(call: Call) -> str:
    """Return why the kernel cannot compute a call of one row, or "" if it can at some sizes."""
    named = views_by_operand(call)
    x, w, depth = named["x"], named["w"], named["x"].dims[-1]
    if len(named["y"][0].dims) > 2 or len(x.dims) > 2 or len(w.dims) > 2:
        return "the kernel computes one matrix, not a batch"
    if call.attributes["layout"] != "nk" or w.strides[-1] != 1:
        return "the kernel reads matrices that are contiguous along the depth"
    if not isinstance(depth, int) or not depth or depth % _VECTOR:
        return f"the depth is not a known multiple of {_VECTOR}"
    if not all(isinstance(n, int) and n % _VECTOR == 0 for n in (w.strides[0], w.offset)):
        return f"rows of the matrix do not start at known multiples of {_VECTOR} numbers"
    columns = w.dims[0]
    if not isinstance(columns, int) or 2 * columns * depth < _LEAST_BYTES:
        return f"the matrix has less than {_LEAST_BYTES >> 20} MB"
    if 2 * _chunks(depth) * _STEPS > _STAGED:
        return f"a row of x does not fit {_STAGED} bytes"
    return ""


def name(call: Call) -> str:
    whole = tensor_core_matmul.without_parts(call)
    return tensor_core_matmul.name(whole).replace("gemm", "one", 1)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = tensor_core_matmul.epilogue(tensor_core_matmul.without_parts(call))
    return {**made, "run": 1, "kind": call.dtype, "warps": variant.threads // WARP}


def shared(call: Call, variant: Variant) -> int:
    depth = views_by_operand(call)["x"].dims[-1]
    # the kernel has no depth of its own: the most that a call may have
    return shared_bytes(variant, depth if isinstance(depth, int) else _STAGED // 2)


def shared_bytes(variant: Variant, depth: int) -> int:
    """Return the shared memory of a block that multiplies a row of so many numbers, in bytes."""
    warps = variant.threads // WARP
    ring = warps * variant.params["stages"] * _CHUNK
    return ring + 4 * (2 * warps * COLUMNS + 4 + 2 * warps) + 2 * _chunks(depth) * _STEPS


def crowding(call: Call, variant: Variant) -> str:
    """Return why fewer blocks than wanted share an SM although there are enough, or ""."""
    crowd, columns = variant.params["crowd"], views_by_operand(call)["w"].dims[0]
    if crowd * (shared(call, variant) + _RESERVED) <= _OF_AN_SM or columns <= COLUMNS * H100_SMS:
        return ""
    return f"{crowd} blocks do not fit the shared memory of an SM"


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    call = tensor_core_matmul.without_parts(call)
    named, own, chain = views_by_operand(call), TYPES[call.dtype], chain_of(call)
    x, w, (rows, depth) = named["x"], named["w"], named["x"].dims
    made = [pointer(x, own), i32(x.strides[-1]), pointer(w, own), i32(w.strides[0])]
    if named["bias"] is not None:
        made += [pointer(named["bias"], own.F32), i32(named["bias"].strides[-1])]
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*named["inputs"], *named["y"]), types, strict=True):
        made += [pointer(view, dtype), *map(i32, tensor_core_matmul.strides_of(view, 0))]
    made += tensor_core_matmul.norm_arguments(call)
    cols, warps = named["y"][0].dims[-1], variant.threads // WARP
    abreast, each = warps_of_tiles(_chunks(int(depth)), warps)
    tiles = combine("ceildiv", cols, COLUMNS)
    made += [i32(n) for n in (rows, cols, depth, tiles, abreast, each)]
    made += [constant_buffer_flag(w), late()]
    blocks = product((rows, combine("ceildiv", tiles, abreast)))  # none without a row
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made),
                  persistent=variant.params["crowd"])  # fmt: skip
