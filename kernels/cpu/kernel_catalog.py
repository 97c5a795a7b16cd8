"""The CPU's kernels as the policy asks about them: topologies of calls, variants, schedules.

A library runs the variants of the highest level that it has and the processor supports.  Modelled
times: arithmetic at the measured peak of the level, reduced by how well the register tile uses it,
plus reads and writes at the bandwidth of L2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import ceil, prod
from types import MappingProxyType

from tracea_graph.hardware import Measurements, profile_cpu
from tracea_graph.kernels.cpu.call_links import choose_links, with_links
from tracea_graph.kernels.cpu.calls import BLOCK, CALLS
from tracea_graph.kernels.cpu.isa_levels import (
    LEVELS,
    families_with_level,
    isa_of,
    vector_level_of,
)
from tracea_graph.kernels.cpu.named_targets import OPERATIONS
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES, GemmSchedule
from tracea_graph.kernels.cpu.variants import PANEL, VARIANTS, KernelVariant, find_variant
from tracea_graph.kernels.program import Call, Schedule
from tracea_graph.kernels.schema import CallSchema, Sizes
from tracea_graph.ops.chain import Chain
from tracea_graph.policy import (
    BlockSparse,
    CandidateVariant,
    Channelwise,
    KernelCatalog,
    Machine,
    OperatorTopology,
    Pointwise,
    Rowwise,
    Transformed,
    UnstructuredSparse,
    Windowed,
)
from tracea_graph.policy.operator_topology import Kind

__all__ = ["CATALOG", "CpuCatalog", "host_loop", "variant_id"]

_FLIGHT = 8
"""Multiply-adds in flight that keep two units with a latency of four cycles busy."""
_PER_NUMBER: Mapping[str, float] = MappingProxyType(
    {"norm": 8.0, "channel_norm": 8.0, "softmax": 14.0, "elementwise": 4.0}
)
"""Operations per element for kernels without matrix products, 1 by default."""
_SOFTMAX = 14.0
"""Operations per score of attention besides its products."""


def variant_id(variant: KernelVariant) -> str:
    """A variant's symbol without its prefix, such as ``f32_gemm_8x48__avx512``."""
    return variant.symbol(variant.kernel).removeprefix("tracea_")


def host_loop(op: str) -> str:
    """The id of a call that the runtime computes without a kernel."""
    return f"host_{op}"


class CpuCatalog(KernelCatalog):
    """The CPU's kernels: one variant per level, which processors choose at run time."""

    def dtypes(self, op: str) -> tuple[str, ...]:
        """Return the element types of an op's calls; expressions may also store bf16."""
        return ("f32", "bf16") if op == "elementwise" else super().dtypes(op)

    def dtype(self, call: Call) -> str:
        """The call's element type; bf16 for an elementwise expression that stores bf16."""
        return "bf16" if call.op == "elementwise" and _rounds(call.chain) else call.dtype

    def kind(self, schema: CallSchema, sizes: Sizes) -> Kind:
        """The structure of a call's product, such as a window, stored blocks or a transform."""
        match schema.op:
            case "gemm_block_sparse":
                count, *block = sizes.of("w")
                rows, dense = max(prod(block) // BLOCK, 1), _dense(sizes)
                return BlockSparse(rows, BLOCK, min(1.0, count * rows * BLOCK / dense))
            case "gemm_bitmap":
                return UnstructuredSparse(min(1.0, sizes.of("w")[0] / _dense(sizes)))
            case "attention" if sizes["window_left"] >= 0:
                return Windowed(max(sizes["window_left"], sizes["window_right"], 1))
            case "winograd" | "conv_dispatch":
                return Transformed(sizes["tile"])
            case "depthwise":
                return Channelwise()
        return super().kind(schema, sizes)

    def problem(self, schema: CallSchema, sizes: Sizes) -> tuple[int, ...]:
        """Return batch, m, n and k; for block-sparse weights those of the dense product."""
        if schema.op == "gemm_block_sparse":
            rows, depth = sizes.of("x")
            return 1, rows, _columns(sizes), depth
        return super().problem(schema, sizes)

    # ---- variants ----------------------------------------------------------------------

    def candidates(
        self, topology: OperatorTopology, levels: Sequence[str], figures: Measurements | None
    ) -> tuple[CandidateVariant, ...]:
        """Every variant of a call: the one of the highest level first, the others by level."""
        kernel, also = _kernel(topology)
        if not kernel:
            own = CandidateVariant(
                host_loop(topology.op), levels[-1], "computed by a runtime loop"
            )
            return (own,)
        chosen = find_variant(kernel, levels[-1])
        why = f"{chosen.isa} is the highest allowed level with this kernel"
        if also:
            why += f"; {variant_id(find_variant(also, levels[-1]))} {_TOGETHER[topology.op]}"
        usable, related = _usable(tuple(levels)), _relation(levels[-1])
        rated = [
            CandidateVariant(
                variant_id(v), v.isa, why if v is chosen else _against(v, chosen, levels),
                _us(topology, v, figures) if v.isa in usable else None,
                v.isa in usable,
            )
            for v in VARIANTS if v.kernel == kernel and related(v.isa)
        ]  # fmt: skip
        order = [isa.name for isa in LEVELS]
        rated.sort(key=lambda c: (c.id != variant_id(chosen), not c.fits, -order.index(c.level)))
        return tuple(rated)

    def order(self, topology: OperatorTopology) -> tuple[str, str]:
        """Return the order of tiles, row by row as in every host loop, and an empty reason."""
        return "row-major", ""

    def schedules(self, topology: OperatorTopology) -> tuple[tuple[Schedule, ...], str]:
        """Return the default schedules of a product, one per range of row counts, and the reason.

        Other operations have no default schedules.
        """
        schema = CALLS.get(Call.name_of(topology.op, topology.dtype))
        if schema is None or schema.schedule is None:
            return (), ""
        if schema.schedule is not GemmSchedule:
            return (), "the library divides the work at run time, by the actual sizes"
        own = next(s for s in GEMM_SCHEDULES if topology.m <= s.limit)
        rows = f"{topology.m} row{'s' * (topology.m > 1)}"
        return GEMM_SCHEDULES, f"{'' if topology.static else 'about '}{rows}: {own.text}"

    def linked(
        self, calls: Sequence[Call], topologies: Sequence[OperatorTopology], machine: Machine
    ) -> tuple[tuple[Call, ...], tuple[str, ...]]:
        """Choose by the cost model which calls' tasks wait for rows; see ``call_links``."""
        links = choose_links(list(zip(calls, topologies, strict=True)), machine)
        return tuple(with_links(calls, links)), tuple(link.reason for link in links)


def _rounds(chain: Chain | None) -> bool:
    return chain is not None and any(d.short == "bf16" for d in chain.result_types)


def _columns(sizes: Sizes) -> int:
    return sum(dims[-1] for dims in sizes.each("y"))


def _dense(sizes: Sizes) -> int:
    """Elements of a product's dense matrix."""
    return max(1, sizes.of("x")[-1] * _columns(sizes))


# ---- variants --------------------------------------------------------------------------

_TOGETHER: Mapping[str, str] = MappingProxyType(
    {
        "winograd": "multiplies the transformed tiles",
        "conv_dispatch": "multiplies the transformed tiles, or sums directly over few pixels",
        "attention": "rounds its operands",
    }
)
"""What the second kernel of an op does."""


@cache
def _kernel_of(op: str, dtype: str) -> tuple[str, str]:
    """The kernel that computes a call, and a second one that takes part; empty for none."""
    if op == "elementwise":
        return Call.name_of("chain", dtype), ""
    needs = CALLS[Call.name_of(op, dtype)].needs
    own = [k for k in needs if k == Call.name_of(op, dtype)]
    if op in ("winograd", "conv_dispatch"):
        own = [k for k in needs if k.startswith("winograd")]
        return own[0], next(k for k in needs if k.startswith("conv"))
    if dtype == "f32_as_bf16":
        return "attention_bf16", "gemm_bf16"
    return (own or [*needs, ""])[0], ""


def _kernel(topology: OperatorTopology) -> tuple[str, str]:
    return _kernel_of(topology.op, topology.dtype)


@cache
def _usable(levels: tuple[str, ...]) -> frozenset[str]:
    """The levels of a library, and the levels whose kernels these use."""
    bases = {isa_of(level).base for level in levels} - {""}
    return frozenset((*levels, *bases))


def _relation(level: str) -> Callable[[str], bool]:
    """A predicate: does a level belong to the same architecture as ``level``?"""
    families = set(families_with_level(level))
    return lambda other: not families.isdisjoint(families_with_level(other))


@cache
def _flags() -> frozenset[str]:
    return profile_cpu().flags


def _against(variant: KernelVariant, chosen: KernelVariant, levels: Sequence[str]) -> str:
    """Why a variant was not chosen."""
    if variant.isa == chosen.isa:
        return f"a library holds one tile per level, and {chosen.tile} is listed first"
    if variant.isa in _usable(tuple(levels)):
        return f"its level is lower than {chosen.isa}"
    missing = [f for f in isa_of(variant.isa).features if f not in _flags()]
    if missing:
        return f"needs {', '.join(missing)}, which this processor lacks"
    return f"above {levels[-1]}, the highest level that the target or TRACEA_ISA allows"


# ---- modelled times --------------------------------------------------------------------


def _us(
    topology: OperatorTopology, variant: KernelVariant, figures: Measurements | None
) -> float | None:
    """Modelled µs on one core; None if the peak is not known."""
    peak = _peak(figures, variant) if figures else 0.0
    if not figures or not peak:
        return None
    arithmetic = _operations(topology) / (peak * _fill(topology, variant))
    size = 4.0 if variant.element == "f32" else 2.0
    memory = topology.moved * size / (figures.bandwidth.l2 or figures.bandwidth.dram)
    return (arithmetic + memory) * 1e-3


def _operations(t: OperatorTopology) -> float:
    if isinstance(t.kind, Rowwise | Pointwise):
        return _PER_NUMBER.get(t.op, 1.0) * t.batch * t.m * t.n
    if isinstance(t.kind, Transformed):
        side = t.kind.side
        return t.flops * (side + 2) ** 2 / (9.0 * side**2)
    if t.op == "attention":
        return t.flops * (1.0 + _SOFTMAX / (2.0 * t.k))
    return t.flops


def _peak(figures: Measurements, variant: KernelVariant) -> float:
    """The peak of a variant's level or its fastest instruction, else the dtype's best peak.

    A level for bf16 and int16 that was not measured is assumed to be twice as fast as float32.
    """
    isa = isa_of(variant.isa)

    def best(dtype: str) -> float:
        return max((p.gops for p in figures.peaks if p.dtype == dtype), default=0.0)

    own = [figures.peak(variant.element, n) for n in (isa.name, *isa.features)]
    if variant.element == "f32":
        own = [figures.peak("f32", vector_level_of(isa.name))]
    found = max(own, default=0.0) or best(variant.element)
    return 2.0 * best("f32") if isa.base and not found else found


def _fill(t: OperatorTopology, variant: KernelVariant) -> float:
    """Share of the peak that a variant reaches: padded columns, and tiles too small to be fast."""
    width = isa_of(variant.isa).width
    if variant.op in ("gemm", "conv"):
        tall = variant.params["mr" if variant.op == "gemm" else "pixels"]
        vectors = int(str(variant.params["nv"])) * PANEL // width
        tile = min(t.m, int(str(tall))) * vectors
        return t.n / (ceil(t.n / PANEL) * PANEL) * min(1.0, tile / _FLIGHT)
    if variant.op == "attention":
        head = max(1, t.k // 2)
        return 0.5 * head / (ceil(head / width) * width)
    if t.k > 1:
        return 0.5
    return t.n / (ceil(t.n / width) * width) / 2


CATALOG = CpuCatalog("cpu", CALLS, OPERATIONS)
