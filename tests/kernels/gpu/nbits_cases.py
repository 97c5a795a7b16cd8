"""Matmuls with block-quantized matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cache_cases import EPSILON, rms_norm
from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.block_quantized_storage import WINDOW, groups_of, window_axes
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES"]

_FEW, _MANY = ("8x16", "16x16"), {"f16": "64x64x64x3", "bf16": "64x64x64x3"}


def windows(layout: BlockQuantized, packed: Array) -> Array:
    """The bytes of a layout in the order of kernels."""
    n, size = len(packed), layout.bits * WINDOW // 8
    flat = packed.reshape(n, -1)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % size)))
    axes, order = window_axes(layout.bits)
    split = flat.reshape(n, -1, *axes)
    return np.ascontiguousarray(split.transpose(0, 1, *(2 + a for a in order))).reshape(n, -1)


def codes(
    dtype: str, m: int, n: int, k: int, bits: int, block: int, zeros: str = "middle",
    late: int = 0, residual: bool = False, spoilt: bool = False, normed: bool = False,
) -> Maker:  # fmt: skip
    """``spoilt``: numbers of x and a scale that are not finite; ``normed``: x is normalised."""
    own = {"f16": DType.F16, "bf16": DType.BF16}.get(dtype, DType.F32)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        layout = BlockQuantized(bits, block, zeros)
        x = some(rng, (m, k), own)
        stored = rng.integers(0, 2**bits, (n, layout.blocks(k) * block)).astype(np.uint8)
        scales = rng.uniform(0.5, 2.0, (1, n, layout.blocks(k))).astype(np.float32) / 2**bits
        if spoilt:
            x[0, 3], x[m - 1, k - 1], scales[0, 1, 0] = np.inf, np.nan, np.nan
        own_zeros = rng.integers(0, 2**bits, scales.shape).astype(np.float32)
        own_zeros += 0.25 if zeros == "float" else 0.0
        both = scales if zeros == "middle" else np.concatenate([scales, own_zeros])
        packed = layout.packed(stored)
        group = groups_of(block)
        more_blocks = -layout.blocks(k) % (WINDOW // group) if group == block else 0
        filled = [np.pad(a[0], ((0, 0), (0, more_blocks))) for a in (scales, own_zeros)]
        bias = rng.standard_normal(n).astype(np.float32)
        more = [some(rng, (m, n), own)] if residual else []
        step = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,),
                     (DType.F32, own), (own,))  # fmt: skip
        chain = step if residual else None
        y = memory.empty((m, n), NUMPY[own], late)
        gamma = rng.uniform(0.5, 1.5, k).astype(np.float32)
        call = CALLS.make(
            "gemm_nbits", dtype, x=memory.put(x, late, late),
            w=memory.put(windows(layout, packed)), scales=memory.put(filled[0]),
            zeros=None if zeros == "middle" else memory.put(filled[1]), bias=memory.put(bias),
            inputs=[memory.put(one) for one in more], y=[y], chain=chain, zero_kind=zeros,
            bits=bits, group=group, block=block, divided=group != block,
            gamma=memory.put(gamma) if normed else None, epsilon=EPSILON if normed else 0.0,
        )  # fmt: skip

        def expected() -> list[Expected]:
            with np.errstate(all="ignore"):
                right = layout.matrix([packed, both.astype(np.float64)], k, n)
                value = (rms_norm(wide(x)) * gamma if normed else wide(x)) @ right + bias
                value = chain.reference([value, *map(wide, more)])[0] if chain else value
            return [Expected(y, value, max(TOLERANCE[own], 3e-6))]

        return call, expected

    return make


def dequantized(
    dtype: DType, n: int, k: int, bits: int, block: int, zeros: str = "middle"
) -> Maker:
    """The numbers of a matrix, as a matmul of many rows reads them."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        layout, group = BlockQuantized(bits, block, zeros), groups_of(block)
        stored = rng.integers(0, 2**bits, (n, layout.blocks(k) * block)).astype(np.uint8)
        scales = rng.uniform(0.5, 2.0, (1, n, layout.blocks(k))).astype(np.float32)
        own = rng.integers(0, 2**bits, scales.shape) + (0.25 if zeros == "float" else 0.0)
        both = np.concatenate([scales, own.astype(np.float32)])
        more_blocks = -layout.blocks(k) % (WINDOW // group) if group == block else 0
        filled = [np.pad(a, ((0, 0), (0, more_blocks))) for a in both]
        packed, y = layout.packed(stored), memory.empty((n, k), NUMPY[dtype])
        call = CALLS.make(
            "dequantize", dtype.short, w=memory.put(windows(layout, packed)),
            scales=memory.put(filled[0]), y=y, zero_kind=zeros, bits=bits, group=group,
            zeros=None if zeros == "middle" else memory.put(filled[1]), block=block,
            divided=group != block,
        )  # fmt: skip
        right = layout.matrix([packed, both[: 1 + (zeros != "middle")].astype(np.float64)], k, n)
        return call, lambda: [Expected(y, right.T, TOLERANCE[dtype])]

    return make


_KINDS = (
    (4, 32, "middle"), (8, 16, "integer"), (4, 128, "integer"), (8, 64, "middle"),
    (2, 32, "integer"),
)  # fmt: skip


def _cases() -> Iterator[Case]:
    for dtype in ("f16", "bf16", "tf32x3"):
        needs = ("bf16",) if dtype == "bf16" else ()
        many = _MANY.get(dtype, "64x64x32x3")
        for bits, block, zeros in _KINDS if dtype == "f16" else _KINDS[:2]:
            for m, tile in ((7, _FEW[0]), (13, _FEW[1]), (67, many)):
                name = f"nbits {dtype} {bits} {block} {zeros} {m}"
                yield Case(name, codes(dtype, m, 90, 320, bits, block, zeros), (tile,), needs)
    for bits, block, zeros in (*_KINDS, (4, 32, "float")):
        made = dequantized(DType.F16, 37, 328, bits, block, zeros)
        yield Case(f"dequantized {bits} {block} {zeros}", made, ("256",))
    made = dequantized(DType.BF16, 9, 192, 4, 48)
    yield Case("dequantized bf16", made, ("256",), ("bf16",))
    yield Case("nbits float", codes("f16", 5, 40, 128, 4, 32, "float"), (_MANY["f16"],))
    yield Case("nbits residual", codes("f16", 9, 130, 192, 4, 48, residual=True),
               (_FEW[0], _MANY["f16"]))  # fmt: skip
    yield Case("nbits late", codes("f16", 3, 17, 70, 4, 16, "integer", late=3),
               (*_FEW, _MANY["f16"]))  # fmt: skip
    yield Case("nbits large", codes("f16", 130, 136, 200, 4, 32), ("128x128x64x3",))
    for dtype, bits, block, zeros in (
        ("f16", 4, 32, "middle"), ("f16", 8, 16, "integer"), ("f16", 4, 128, "middle"),
        ("f16", 2, 64, "middle"), ("bf16", 4, 32, "middle"), ("tf32x3", 4, 32, "middle"),
    ):  # fmt: skip
        name = f"nbits one {dtype} {bits} {block}"
        needs = ("bf16",) if dtype == "bf16" else ()
        made = codes(dtype, 1, 90, 1056, bits, block, zeros)
        yield Case(name, made, ("1x16x8", "1x16x16"), needs)
    yield Case("nbits one late", codes("f16", 1, 40, 70, 4, 16, late=3), ("1x16x8",))
    for dtype, k, late in (("f16", 1056, 0), ("f16", 70, 3), ("bf16", 2112, 0)):
        yield Case(f"nbits one normed {dtype} {k}",
                   codes(dtype, 1, 40, k, 4, 32 if k > 70 else 16, late=late, normed=True),
                   ("1x16x8", "1x16x16"), ("bf16",) if dtype == "bf16" else ())  # fmt: skip
    one, new = ("1x16x8x256x2", "1x16x16x256x2", "1x16x4x256x2"), ("clusters",)
    for block in (32, 64, 128):
        yield Case(f"nbits one row {block}", codes("f16", 1, 90, 1088, 4, block), one, new)
    for k, late in ((1088, 0), (70, 3)):
        made = codes("f16", 1, 40, k, 4, 32, residual=k > 70, late=late, normed=True)
        yield Case(f"nbits one row normed {k}", made, one, new)
    yield Case("nbits one row deep", codes("f16", 1, 20, 4800, 4, 32), one, new)
    yield Case("nbits one row even", codes("f16", 1, 37, 896, 4, 32, normed=True), one, new)
    yield Case("nbits one row tiles", codes("f16", 1, 16 * 601 + 3, 320, 4, 32), one[:1], new)
    yield Case("nbits one tiles", codes("f16", 1, 16 * 397 + 3, 320, 4, 32), ("1x16x8",))
    yield Case("nbits deep", codes("f16", 1, 33, 4416, 4, 4416), (_FEW[0],))
    yield Case("nbits spoilt", codes("f16", 3, 24, 64, 4, 32, "integer", spoilt=True),
               (_FEW[0], _MANY["f16"]))  # fmt: skip


CASES = tuple(_cases())
