"""GPU kernels for the policy: topologies of calls, variants, and why each is chosen or not.

Modelled times use the figures of this machine's GPU, or those of a typical device of another
architecture.  They only order the variants in a list; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from types import MappingProxyType
from typing import Any

from tracea_graph.hardware import Measurements
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES, Architecture
from tracea_graph.kernels.gpu.block_quantized_storage import WINDOW
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import (
    attention,
    one_row_matmul,
    tensor_core_matmul,
    warpgroup_attention,
)
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.families.warpgroup_tile import Tile
from tracea_graph.kernels.gpu.gpu_measurement import EARLY, PLAIN, SMS, figures_for, peak_level
from tracea_graph.kernels.gpu.kernel_selection import (
    COMPOSED,
    ONE_ROW,
    is_transposing_copy,
    variants_of,
)
from tracea_graph.kernels.gpu.tile_choice import choose_tile
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Buffer, Call, View
from tracea_graph.kernels.schema import CallSchema, Sizes
from tracea_graph.policy import (
    CandidateVariant,
    Channelwise,
    KernelCatalog,
    OperatorTopology,
    Permuted,
    Windowed,
)
from tracea_graph.policy.kernel_catalog import SizeOf
from tracea_graph.policy.operator_topology import Kind

__all__ = ["GpuCatalog", "modelled_us", "shared_bytes", "tile_for", "variant_id"]

_PAD = 4
_BLOCK = 32
"""Steps of the depth in a block of a typical block-quantized matrix."""
_TWO_GROUPS = ("gemm_wgmma.cu.in", "conv_wgmma.cu.in", "gemm_bytes_wgmma.cu.in",
               "conv_bytes_wgmma.cu.in", "gemm_blocks_wgmma.cu.in")  # fmt: skip
"""Templates whose blocks have two multiplying warpgroups."""
_SIZES = MappingProxyType({"f16": 2, "bf16": 2, "b1": 1, "b2": 2, "b8": 8})
"""Bytes of an element, 4 by default."""


def variant_id(variant: Variant, architecture: str) -> str:
    """Return ``<dtype>_<op>_<tile>__<architecture>``, which all calls of a variant share."""
    return f"{variant.dtype}_{variant.op}_{variant.tile}__{architecture}"


def tile_for(topology: OperatorTopology) -> tuple[str, str]:
    """Return the tile of an operator, and why; see :func:`choose_tile`."""
    t = topology
    return choose_tile(
        t.op, t.dtype, t.batch * t.m if t.static else 0, t.n if t.static_columns else 0,
        max(1, t.operands), t.k // 2, isinstance(t.kind, Permuted),
    )  # fmt: skip


def shared_bytes(variant: Variant, topology: OperatorTopology) -> int:
    """Return the shared memory of a block in bytes; 0 for kernels whose need is negligible."""
    p = variant.params
    size = _SIZES.get(variant.dtype, 4)
    if variant.template in ("gemm.cu.in", "conv.cu.in"):
        return tensor_core_matmul.Tile(
            p["m"], p["n"], p["k_bytes"], p["wm"], p["wn"], size, "nk", p["stages"]
        ).shared
    if variant.template in _TWO_GROUPS:
        return Tile(p["m"], p["n"], p["stages"], bool(p["pingpong"]), True).vectors_at
    if variant.template == ONE_ROW:
        return one_row_matmul.shared_bytes(variant, topology.k)
    if variant.template == "attention_wgmma.cu.in":
        head = ceil(topology.k / 2 / 16) * 16
        return warpgroup_attention.HeadTile(p["groups"], p["keys"], p["stages"], head, head).shared
    if variant.template == "attention.cu.in":
        return _attention_tile(variant, topology).shared
    if variant.template.endswith("_fma.cu.in"):
        return 4 * p["k"] * (p["m"] + p["n"] + 2 * _PAD)
    return 0


def _attention_tile(variant: Variant, topology: OperatorTopology) -> attention.Tile:
    """Return an attention's tile, as if both head sizes were the larger one."""
    p, head = variant.params, ceil(topology.k / 2 / 16) * 16
    size = int(TYPES[variant.dtype].size)
    return attention.Tile(p["queries"], p["keys"], head, head, p["stages"], size)


class GpuCatalog(KernelCatalog):
    """The GPU's kernels: several tiles per op, chosen by the sizes of a call."""

    def kind(self, schema: CallSchema, sizes: Sizes) -> Kind:
        """Return the structure of a call, for example a window, channels or a permuting copy."""
        if schema.op in ("attention", "attention_rows") and sizes["window_left"] >= 0:
            return Windowed(max(sizes["window_left"], sizes["window_right"], 1))
        if schema.op == "depthwise":
            return Channelwise()
        if schema.op == "copy" and is_transposing_copy(sizes.call):
            return Permuted()
        return super().kind(schema, sizes)

    def topology(self, call: Call, size_of: SizeOf) -> OperatorTopology:
        """Return the topology of a call, including the tiles among which the runtime chooses."""
        found = super().topology(call, size_of)
        tiles = (v.tile for v, when in variants_of(call) if size_of(when) > 0)
        return replace(found, tiles=tuple(dict.fromkeys(tiles)))

    def problem(self, schema: CallSchema, sizes: Sizes) -> tuple[int, ...]:
        """Return batch, m, n and k; for attention, k is twice the larger head size."""
        if schema.op in ("attention", "attention_rows", "attention_cached"):
            batch, heads, queries, depth = sizes.of("q")
            keys, values = ("past_k", "past_v") if schema.op == "attention_cached" else "kv"
            return batch * heads, queries, sizes.of(keys)[2], 2 * max(depth, sizes.of(values)[3])
        return super().problem(schema, sizes)

    def candidates(
        self, topology: OperatorTopology, levels: Sequence[str], figures: Measurements | None
    ) -> tuple[CandidateVariant, ...]:
        """Return every variant: first the chosen one, then the others by modelled time."""
        architecture = ARCHITECTURES[levels[-1]]
        if not topology.tiles and topology.dtype == "f32" and topology.op in ("gemm", "conv"):
            topology = replace(topology, dtype="tf32x3")  # as programs compute float32
        device = figures_for(architecture.name, figures)
        tile, why = tile_for(topology)
        preferred = topology.tiles or _preferred(topology)
        made = list[tuple[bool, CandidateVariant]]()
        known = [v for v in VARIANTS if (v.op, v.dtype) == (topology.op, topology.dtype)]
        if topology.op in COMPOSED:  # and kernels of its parts
            known += [v for v in VARIANTS if v.op in _PARTS[topology.op]
                      and v.dtype == topology.dtype and v.tile in topology.tiles]  # fmt: skip
        able = [ARCHITECTURES[level] for level in levels]
        needed = {v.tile: shared_bytes(v, topology) for v in known}
        refused = {v.tile: _refusal(v, topology, needed[v.tile], able) for v in known}
        by_tile = {v.tile: v for v in known}
        first = next((t for t in preferred if t in by_tile and not refused[t]), tile)
        for variant in known:
            chosen = variant.tile == first or (not first and variant is known[0])
            us = modelled_us(variant, topology, architecture.name, device)
            reason = _why(variant) or why or "the only tile for this call"
            if size := needed[variant.tile]:
                reason += f"; {size >> 10} of {architecture.block_shared >> 10} kB shared memory"
            other = "runs where the chosen one cannot" if variant.tile == tile else _unfit(variant)
            said = refused[variant.tile] or (reason if chosen else other)
            name = variant_id(variant, architecture.name)
            fits = not refused[variant.tile]
            made.append((chosen, CandidateVariant(name, architecture.name, said, us, fits)))
        made.sort(key=lambda one: (not one[0], not one[1].fits, one[1].us or 0.0))
        return tuple(candidate for _, candidate in made)


def _preferred(t: OperatorTopology) -> tuple[str, ...]:
    """Return the tiles for an operator whose operands are dense and aligned, best first."""
    place = (Buffer("input", i) for i in range(4))
    named: dict[str, Any]
    if t.op == "gemm":
        shapes = (t.m, t.k), (t.n, t.k), (t.m, t.n)
        x, w, y = (View.dense(b, s) for b, s in zip(place, shapes, strict=False))
        named = {"x": x, "w": w, "y": [y], "layout": "nk"}
    elif t.op == "gemm_nbits":
        bytes_of_column = -(-t.k // WINDOW) * WINDOW // 2
        sizes = (t.m, t.k), (t.n, bytes_of_column), (t.n, -(-t.k // _BLOCK)), (t.m, t.n)
        x, w, scales, y = (View.dense(b, s) for b, s in zip(place, sizes, strict=True))
        named = {"x": x, "w": w, "scales": scales, "y": [y], "zero_kind": "middle", "bits": 4,
                 "group": _BLOCK, "block": _BLOCK}  # fmt: skip
    elif t.op == "attention":
        head = max(t.k // 2, 1)
        sides = (t.m, t.n, t.n, t.m)
        q, k, v, y = (
            View.dense(b, (1, t.batch, n, head)) for b, n in zip(place, sides, strict=True)
        )
        named = {"q": q, "k": k, "v": v, "y": y, "scale": 1.0, "mask_kind": "none",
                 "order": "none", "zero_rows": "none", "fill": 0.0, "softcap": 0.0}  # fmt: skip
    else:
        return ()
    call = CALLS.make(t.op, t.dtype, **named)
    return tuple(v.tile for v, when in variants_of(call) if isinstance(when, int) and when > 0)


_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "mlp": ("norm", "gemm"), "gated_gemm": ("gemm",), "low_rank_gemm": ("gemm",),
    "attention_projection": ("attention", "gemm"),
    "grouped_integer_gemm": ("integer_gemm",), "normed_integer_gemm": ("integer_gemm", "norm"),
    "quantized_attention": ("gemm", "softmax"), "expanded_depthwise": ("conv", "depthwise"),
})  # fmt: skip
"""Ops of the calls for which one stands that a kernel may compute together."""
_WHY = MappingProxyType(
    {
        "gemm_few.cu.in": "few rows, and tensor maps can copy the operands: many small tiles",
        "gemm_wgmma.cu.in": "many rows, and tensor maps can copy the operands: two warpgroups",
        "gemm_nbits_few.cu.in": "few rows: codes are multiplied in registers as they are",
        "gemm_one.cu.in": "one row: each warp has a ring of parts of the matrix",
        "gemm_nbits_one.cu.in": "one row: each warp has a ring of codes",
        "gemm_blocks_wgmma.cu.in": "many rows, and tensor maps can copy them: two warpgroups",
        "gemm_two_of_four_wgmma.cu.in": "many rows, and tensor maps can copy them: two warpgroups",
        "gemm_bytes_wgmma.cu.in": "many rows, and tensor maps can copy them: two warpgroups",
        "conv_bytes_wgmma.cu.in": "many pixels, and tensor maps can copy them: two warpgroups",
        "conv_few.cu.in": "few pixels, and tensor maps can copy them: many small tiles",
        "conv_wgmma.cu.in": "many pixels, and tensor maps can copy them: two warpgroups",
        "attention_projection.cu.in": "few rows: blocks of a cluster have two heads each",
        "attention_quantized.cu.in": "few keys: a block holds all scores of 64 queries at once",
        "attention_quantized_many.cu.in": "more keys: scores are computed twice, tile by tile",
        "depthwise_expanded.cu.in": "expanded pixels stay in shared memory",
        "gemm_low_rank_depth_wgmma.cu.in": "many rows, and a cluster shares a long depth",
        "gemm_low_rank_wgmma.cu.in": "many rows, and a cluster holds what is between the products",
        "gemm_gated_wgmma.cu.in": "many rows, and tensor maps can copy them: two warpgroups",
        "gemm_grouped_wgmma.cu.in": "many rows, and tensor maps can copy them: two warpgroups",
        "gemm_normed_wgmma.cu.in": "many rows: a cluster of blocks has whole rows of the result",
        "mlp.cu.in": "many rows, and both weights fit into shared memory",
        "attention_few.cu.in": "few keys: a block holds all scores of 64 queries at once",
        "attention_split.cu.in": "the warps of a block share the keys of few heads",
        "attention_wgmma.cu.in": "many queries: warpgroups take turns at the tensor cores",
    }
)
"""Reasons to choose a Hopper kernel, by template."""


def _why(variant: Variant) -> str:
    """Return why a variant is chosen, or "" if :func:`choose_tile` gives the reason."""
    return _WHY.get(variant.template, "")


def _unfit(variant: Variant) -> str:
    """Return why a variant that could run is not chosen."""
    return "meant for other sizes" if variant.exact else "not chosen for these sizes"


def _refusal(
    variant: Variant, t: OperatorTopology, shared: int, architectures: Sequence[Architecture]
) -> str:
    """Return why some architecture cannot run a variant; empty if all can."""
    for one in architectures:
        if reason := variant.refusal(one):
            return reason
        if shared > one.block_shared:
            most = one.block_shared >> 10
            return f"takes {shared >> 10} kB of shared memory; a block of {one.name} has {most}"
    if variant.template == "attention.cu.in":
        return attention.register_refusal(_attention_tile(variant, t), variant, altered=False)
    return ""


def modelled_us(
    variant: Variant, t: OperatorTopology, architecture: str, device: Measurements
) -> float:
    """Return the modelled µs: launch cost plus the larger of arithmetic and memory time."""
    launch = device.figure(EARLY) or device.figure(PLAIN)
    moved = t.moved * _SIZES.get(variant.dtype, 4) / device.bandwidth.dram * 1e-3
    if t.k == 1:
        return launch + moved
    p = variant.params
    m, n = p.get("m", p.get("queries", 64)), p.get("n", 64)
    tiles = t.batch * ceil(t.m / m) * (1 if variant.op.startswith("attention") else ceil(t.n / n))
    share = t.flops / (2.0 * t.batch * t.m * t.n * t.k)
    columns = t.n if variant.op.startswith("attention") else n
    split = p.get("split", 1)
    each = 2.0 * m * columns * t.k * share / split
    sms = device.figure(SMS)
    waves = ceil(tiles * split / sms) * sms
    return launch + max(waves * each / _peak(variant, architecture, device) * 1e-3, moved)


def _peak(variant: Variant, architecture: str, device: Measurements) -> float:
    """Return the peak of a variant's instructions on a device, in 1e9 operations per second."""
    dtype, parts = ("tf32", 3) if variant.dtype == "tf32x3" else (variant.dtype, 1)
    how = "wgmma" if variant.exact else "fma" if dtype == "f32" else "mma"
    found = device.peak(dtype, peak_level(architecture, how)) / parts
    return found or device.peak("f32", peak_level(architecture, "fma"))
