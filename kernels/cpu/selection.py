"""Select the kernel variant for a problem on a machine, with the reasons against the others.

A variant qualifies if the processor has its instruction set, its dtype is wanted and its limits
hold.  The fastest by modelled time is selected, or the one of the highest level if several are
equally fast within noise.  The model: arithmetic at the measured peak of the instruction set,
reduced by how well the register tile uses it, plus reads and writes at the bandwidth of L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from tracea_graph.errors import UsageError
from tracea_graph.hardware.cpu import CpuProfile
from tracea_graph.hardware.decision import NOISE, Candidate, Decision, time_of
from tracea_graph.hardware.measurements import Measurements
from tracea_graph.kernels.cpu.levels import LEVELS, isa_of, levels_of
from tracea_graph.kernels.cpu.names import PROBLEMS
from tracea_graph.kernels.cpu.variants import PANEL, VARIANTS, KernelVariant

__all__ = ["ALIASES", "OPS", "plan_kernel", "variant_id"]

_FALLBACK = {"bf16": "f16", "f16": "f32", "i16": "f32"}
_SPELLINGS = {"int16": "i16", "int8": "i8"}
_EMULATED = {
    "bf16": "does bf16 with float32 instructions, which is slower than float32",
    "i16": "has no vpdpwssd, without which integers are no faster than float32",
}
"""Reason why levels that emulate a dtype do not qualify."""
_FLIGHT = 8
"""Multiply-adds in flight that keep two units with a latency of four cycles busy."""
_HEAD_MAX = 256
_F32 = 4.0


@dataclass(frozen=True)
class _Op:
    """An operation: names of its sizes, and functions of them for its work and limits.

    ``flops``: operations; ``moved``: elements read and written; ``fill``: share of peak that a
    variant's tile reaches; ``limit``: the size that is too large, or empty.
    """

    sizes: tuple[str, ...]
    flops: Callable[[Sequence[int]], float]
    moved: Callable[[Sequence[int]], float]
    fill: Callable[[KernelVariant, Sequence[int]], float]
    limit: Callable[[Sequence[int]], str] = lambda sizes: ""
    kernel: str = ""
    """Kernel whose variants perform it; by default the kernel of its own name."""
    dtypes: tuple[str, ...] = ("f32",)
    """Element types that those variants may multiply."""


_Rated = tuple[KernelVariant, Candidate]


def plan_kernel(
    op: str,
    shape: Sequence[int],
    precision: str,
    cpu: CpuProfile,
    figures: Measurements,
    *,
    cap: str | None = None,
    variants: Sequence[KernelVariant] = VARIANTS,
) -> Decision:
    """Select the variant for one problem.

    ``op``: a name in :data:`OPS` or :data:`ALIASES`; ``shape``: the sizes that ``OPS`` lists for
    it.  ``precision`` falls back from bf16 to f16 to f32, and from int16 to f32, if no variant
    has it.  ``cap``: the highest level allowed (``TRACEA_ISA``).
    Raises UsageError for an unknown op or shape, if no variant qualifies, or if two tie.
    """
    op = ALIASES.get(op.lower(), op)
    known, wanted = _known(op, shape), precision.lower().replace("fp", "f")
    wanted = _SPELLINGS.get(wanted, wanted)
    able = [v for v in variants if v.op == (known.kernel or op) and v.dtype in known.dtypes]
    rated = [(v, _rate(known, v, shape, cpu, figures, cap)) for v in able]
    used, note = _precision(op, wanted, rated)
    fit = _by_preference([c for v, c in rated if v.element == used and c.us is not None])
    if len(fit) > 1 and (fit[0].us, fit[0].level) == (fit[1].us, fit[1].level):
        raise UsageError(
            f"{fit[0].id} and {fit[1].id} are equally good for {op} {_text(shape)}; "
            "set TRACEA_ISA to choose one"
        )
    unfit = [
        c if c.us is None else Candidate(c.id, c.level, why=f"computes in {v.element}, not {used}")
        for v, c in rated
        if v.element != used or c.us is None
    ]
    score = known.flops(shape) / (fit[0].us or 1.0) * 1e-3
    others = (*fit[1:], *unfit)
    return Decision(op, tuple(shape), "cpu", fit[0], wanted, used, note, others, score)


def variant_id(variant: KernelVariant) -> str:
    """A variant's symbol without its prefix, such as ``f32_gemm_8x48__avx512``."""
    return variant.symbol(variant.kernel).removeprefix("tracea_")


def _known(op: str, shape: Sequence[int]) -> _Op:
    if op not in OPS:
        raise UsageError(f"there are no kernels for {op!r}; there are some for {', '.join(OPS)}")
    known = OPS[op]
    if len(shape) != len(known.sizes) or min(shape) < 1:
        raise UsageError(
            f"{op} takes {len(known.sizes)} sizes above 0, {','.join(known.sizes)}, "
            f"not {_text(shape)}"
        )
    return known


def _precision(op: str, wanted: str, rated: Sequence[_Rated]) -> tuple[str, str]:
    """The wanted dtype or its first fallback that a qualifying variant has, and why it is used."""
    tried: list[str] = []
    used: str | None = wanted
    while used is not None:
        own = [c for v, c in rated if v.element == used]
        if any(c.us is not None for c in own):
            return used, f"{used} is used: {'; '.join(tried)}" if tried else ""
        why = ", ".join(f"{c.id} {c.why}" for c in own)
        tried.append(why or f"no variant of {op} has {used}")
        used = _FALLBACK.get(used)
    raise UsageError(f"no variant of {op} qualifies: {'; '.join(tried)}")


def _by_preference(fit: Sequence[Candidate]) -> list[Candidate]:
    """Sort by time; candidates within noise of the fastest by level, highest first."""
    levels = [isa.name for isa in LEVELS]
    near = NOISE * min(time_of(c) for c in fit)
    return sorted(fit, key=lambda c: (max(time_of(c), near), -levels.index(c.level), time_of(c)))


def _rate(
    op: _Op,
    variant: KernelVariant,
    shape: Sequence[int],
    cpu: CpuProfile,
    figures: Measurements,
    cap: str | None,
) -> Candidate:
    name = variant_id(variant)
    why = "; ".join((*_lacks(variant, cpu, cap), *filter(None, (op.limit(shape),))))
    if why:
        return Candidate(name, variant.isa, why=why)
    peak = _peak(figures, variant)
    if not peak:
        why = f"needs a {variant.element} multiply-add, which this processor lacks"
        return Candidate(name, variant.isa, why=why)
    arithmetic = op.flops(shape) / (peak * op.fill(variant, shape))
    memory = op.moved(shape) * _F32 / (figures.bandwidth.l2 or figures.bandwidth.dram)
    return Candidate(name, variant.isa, us=(arithmetic + memory) * 1e-3)


def _peak(figures: Measurements, variant: KernelVariant) -> float:
    """The peak of a variant's level or its fastest instruction, else the dtype's best peak.

    A level for bf16 and int16 that was not measured is assumed to be twice as fast as float32.
    """
    isa = isa_of(variant.isa)

    def best(dtype: str) -> float:
        return max((p.gops for p in figures.peaks if p.dtype == dtype), default=0.0)

    own = (figures.peak(variant.element, name) for name in (isa.name, *isa.features))
    found = max(own, default=0.0) or best(variant.element)
    return 2.0 * best("f32") if isa.base and not found else found


def _lacks(variant: KernelVariant, cpu: CpuProfile, cap: str | None) -> Iterator[str]:
    order = [isa.name for isa in LEVELS]
    if variant.isa not in levels_of(cpu, "bf16"):
        yield f"needs {', '.join(isa_of(variant.isa).features)}, which this processor lacks"
    elif variant.element in _EMULATED and not isa_of(variant.isa).base:
        yield _EMULATED[variant.element]
    elif cap in order and order.index(variant.isa) > order.index(cap):
        yield f"TRACEA_ISA={cap} rules it out"


def _text(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


# ---- the operations --------------------------------------------------------------------


def _gemm_fill(variant: KernelVariant, shape: Sequence[int]) -> float:
    """Columns are padded to whole panels; a tile of few rows leaves multiply-add units idle."""
    m, n, _ = shape
    rows = min(m, int(str(variant.params["mr"])))
    vectors = int(str(variant.params["nv"])) * PANEL // isa_of(variant.isa).width
    return n / (ceil(n / PANEL) * PANEL) * min(1.0, rows * vectors / _FLIGHT)


def _conv_fill(variant: KernelVariant, shape: Sequence[int]) -> float:
    """Filters are padded to whole blocks; a small tile leaves multiply-add units idle."""
    filters = shape[4]
    vectors = int(str(variant.params["nv"])) * PANEL // isa_of(variant.isa).width
    tile = min(shape[3], int(str(variant.params["pixels"]))) * vectors
    return filters / (ceil(filters / PANEL) * PANEL) * min(1.0, tile / _FLIGHT)


def _vector_fill(variant: KernelVariant, shape: Sequence[int]) -> float:
    """The last vector of a row may be partly empty; a plain operation is half a multiply-add."""
    width = isa_of(variant.isa).width
    return shape[-1] / (ceil(shape[-1] / width) * width) / 2


def _attention_fill(variant: KernelVariant, shape: Sequence[int]) -> float:
    width, head = isa_of(variant.isa).width, shape[4]
    return 0.5 * head / (ceil(head / width) * width)


def _head_limit(shape: Sequence[int]) -> str:
    return f"heads are at most {_HEAD_MAX} wide" if shape[4] > _HEAD_MAX else ""


OPS = {
    "gemm": _Op(
        PROBLEMS["gemm"],
        lambda s: 2.0 * prod(s),
        lambda s: s[0] * s[2] + s[2] * s[1] + s[0] * s[1],
        _gemm_fill,
        dtypes=("f32", "bf16", "int16"),
    ),
    "conv2d": _Op(
        PROBLEMS["conv2d"],
        lambda s: 2.0 * prod(s[:5]) * s[5] ** 2,
        lambda s: s[0] * s[2] * s[3] * (s[1] + s[4]) + s[1] * s[4] * s[5] ** 2,
        _conv_fill,
        kernel="conv",
        dtypes=("f32", "bf16"),
    ),
    "attention": _Op(
        PROBLEMS["attention"],
        lambda s: (4.0 * s[4] + 14.0) * prod(s[:4]),
        lambda s: 2.0 * s[0] * s[1] * s[4] * (s[2] + s[3]),
        _attention_fill,
        _head_limit,
        dtypes=("f32", "bf16"),
    ),
    "norm": _Op(PROBLEMS["norm"], lambda s: 8.0 * prod(s), lambda s: 2.0 * prod(s), _vector_fill),
    "gather": _Op(
        PROBLEMS["gather"], lambda s: 1.0 * prod(s), lambda s: 2.0 * prod(s), _vector_fill
    ),
    "reduce": _Op(
        PROBLEMS["reduce"], lambda s: 1.0 * prod(s), lambda s: 1.0 * prod(s), _vector_fill
    ),
    "softmax": _Op(
        PROBLEMS["softmax"], lambda s: 14.0 * prod(s), lambda s: 2.0 * prod(s), _vector_fill
    ),
    "chain": _Op(
        PROBLEMS["chain"], lambda s: 4.0 * prod(s), lambda s: 3.0 * prod(s), _vector_fill
    ),
}
"""Operations by name."""

ALIASES = {
    "matmul": "gemm", "linear": "gemm", "conv": "conv2d", "flash_attention": "attention",
    "flash_attention_2": "attention", "sdpa": "attention", "layer_norm": "norm",
    "rms_norm": "norm", "embedding": "gather", "elementwise": "chain",
}  # fmt: skip
"""Other names of the operations; every attention kernel here is flash attention."""
