"""Tiling policy: from an operator's shape and structure to its tiling, with reasons.

    decide(OperatorTopology("gemm", 128, 768, 768, LowRank(64)), ARCHITECTURES["zen4"])

returns the tiling (a grid, a stream of weights, two thin products, a map of stored or visible
tiles), the order of tiles, the kernel that runs them, and the pruned search space with the
architecture's hero configurations as seeds.  Every choice has a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil

from tracea_graph.errors import UsageError
from tracea_graph.policy.space import Config, SearchSpace

__all__ = [
    "BlockSparse",
    "Dense",
    "LowRank",
    "OperatorTopology",
    "Processor",
    "TopologyDecision",
    "Windowed",
    "decide",
    "modelled_us",
]  # fmt: skip

_STREAM_ROWS = 4
"""Rows up to which a product is bound by the bandwidth of its weights."""
_WORTH_SKIPPING = 0.75
"""Density of stored tiles above which a map costs more than skipping saves."""
_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Processor:
    """One family of processors.

    ``near`` are the bytes available to a tile's operands (L1 of a core, shared memory of a block),
    ``far`` those of the next level (L2); ``flops`` fp32 operations per cycle, ``lanes`` fp32 lanes
    of a vector (a warp), ``registers`` vector registers (32-bit registers of an SM, for GPUs).
    ``heroes`` are configurations of a matrix product by kind of shape: ``square`` and ``flat``.
    """

    name: str
    device: str
    near: int
    far: int
    flops: int
    lanes: int
    registers: int
    heroes: Mapping[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Dense:
    """A right operand without structure."""


@dataclass(frozen=True)
class LowRank:
    """A right operand that is a product of ``[k, rank]`` and ``[rank, n]``."""

    rank: int


@dataclass(frozen=True)
class BlockSparse:
    """A right operand of ``rows × columns`` blocks; the fraction ``density`` is not zero."""

    rows: int
    columns: int
    density: float


@dataclass(frozen=True)
class Windowed:
    """A product of which row ``i`` needs only the columns within ``window`` of ``i``."""

    window: int


Kind = Dense | LowRank | BlockSparse | Windowed


@dataclass(frozen=True)
class OperatorTopology:
    """``m × n`` results, each a sum over ``k``, and the structure of the right operand.

    Raises UsageError for sizes below 1, and for structure that does not fit them.
    """

    op: str
    m: int
    n: int
    k: int
    kind: Kind = Dense()

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise UsageError(f"{self.op} needs sizes above 0, not {self.m}, {self.n}, {self.k}")
        match self.kind:
            case LowRank(rank) if not 1 <= rank <= min(self.k, self.n):
                raise UsageError(f"rank {rank} is not between 1 and {min(self.k, self.n)}")
            case BlockSparse(rows, columns, density):
                if min(rows, columns) < 1 or not 0 <= density <= 1:
                    raise UsageError(f"no blocks of {rows}x{columns} with density {density:g}")
            case Windowed(window) if window < 1:
                raise UsageError(f"a window of {window} contains no columns")

    @property
    def flops(self) -> float:
        """Operations that are not skipped."""
        dense = 2.0 * self.m * self.n * self.k
        match self.kind:
            case LowRank(rank):
                return 2.0 * self.m * rank * (self.k + self.n)
            case BlockSparse(_, _, density):
                return dense * density
            case Windowed(window):
                return dense * min(1.0, (2 * window + 1) / self.n)
        return dense


@dataclass(frozen=True)
class TopologyDecision:
    """A tiling; ``configs`` are the best of the pruned space, ``reasons`` one for each choice."""

    tiling: str
    order: str
    variant: str
    space: SearchSpace
    configs: tuple[Config, ...]
    reasons: tuple[str, ...]


def decide(
    topology: OperatorTopology, on: Processor, dtype: str = "f32", limit: int = 16
) -> TopologyDecision:
    """Return the policy's choice for one operator on one family of processors.

    Raises UsageError for an unknown dtype, or if no tile is legal.
    """
    if dtype not in _BYTES:
        raise UsageError(f"unknown dtype {dtype!r}: choose one of {', '.join(_BYTES)}")
    tiling, why_tiling = _tiling(topology)
    order, why_order = _order(topology, tiling, on, _BYTES[dtype])
    variant, why_variant = _variant(topology, tiling, on, dtype)
    space = _space(topology, tiling, on, _BYTES[dtype])
    configs = space.ranked(modelled_us(topology, on, dtype), limit)
    if not configs:
        raise UsageError(f"no tile of {topology.op} is legal on {on.name}")
    legal = sum(1 for _ in space.legal())
    pruned = f"{legal} of {space.size} tiles are legal, {len(configs)} are worth measuring"
    return TopologyDecision(
        tiling, order, variant, space, tuple(configs), (why_tiling, why_order, why_variant, pruned)
    )


def _tiling(t: OperatorTopology) -> tuple[str, str]:
    match t.kind:
        case LowRank(rank):
            dense = 2.0 * t.m * t.n * t.k
            if t.flops < dense:
                saved = f"{t.flops / dense:.0%} of the dense operations"
                return "two-products", f"two products through rank {rank} take {saved}"
            return "grid", f"rank {rank} is too high: two products would take more operations"
        case BlockSparse(rows, columns, density):
            if density <= _WORTH_SKIPPING:
                return "map", f"only {density:.0%} of the {rows}x{columns} blocks are stored"
            return (
                "grid",
                f"{density:.0%} of the blocks are stored: a map costs more than it saves",
            )
        case Windowed(window):
            if 2 * window + 1 < _WORTH_SKIPPING * t.n:
                return "band", f"a row sees {2 * window + 1} of {t.n} columns"
            return "grid", f"a window of {window} hides hardly any of {t.n} columns"
    if t.m <= _STREAM_ROWS:
        return "stream", f"{t.m} rows: time goes into reading the {t.k}x{t.n} operand once"
    return "grid", f"{t.m}x{t.n} results, all of them computed"


def _order(t: OperatorTopology, tiling: str, on: Processor, size: int) -> tuple[str, str]:
    right, left = t.k * t.n * size, t.m * t.k * size
    if tiling in ("stream", "band"):
        return "row-major", "neighbors in a row share operands"
    if right <= on.far // 2:
        return "row-major", f"the right operand ({right >> 10} kB) stays in the second level"
    if left <= on.far // 2:
        return "column-major", f"the left operand ({left >> 10} kB) stays in the second level"
    return "z-order", "neither operand fits the second level: squares of tiles share both"


def _variant(t: OperatorTopology, tiling: str, on: Processor, dtype: str) -> tuple[str, str]:
    words = {
        "two-products": "low_rank_gemm",
        "map": "block_sparse_gemm",
        "band": "windowed_attention",
        "stream": "gemv" if t.m == 1 else "gemm",
        "grid": t.op,
    }
    name = f"{dtype}_{words[tiling]}__{on.name}"
    return name, f"{words[tiling]} in {dtype}: the kernel for a {tiling}"


def _space(t: OperatorTopology, tiling: str, on: Processor, size: int) -> SearchSpace:
    hero = "flat" if t.m <= 16 else "square"
    space = SearchSpace()
    if on.device == "cpu":
        space = _cpu_space(space, t, on, size)
    else:
        space = _gpu_space(space, t, on, size)
    if isinstance(t.kind, BlockSparse) and tiling == "map":
        columns, rows = t.kind.columns, t.kind.rows
        space = space.require(
            "a tile lies within blocks or is made of whole ones",
            lambda c: _nests(c["tile_n"], columns) and _nests(c["tile_k"], rows),
        )
    for config in on.heroes.get(hero, ()):
        space = space.seed(**config)
    return space


def _cpu_space(space: SearchSpace, t: OperatorTopology, on: Processor, size: int) -> SearchSpace:
    lanes, registers = on.lanes, on.registers
    return (
        space.tile_m([1, 2, 4, 6, 8, 12, 14])
        .tile_n([lanes * i for i in (1, 2, 3, 4)])
        .tile_k([64, 128, 256, 512, 1024])
        .axis("rows", [32, 64, 96, 128, 192, 256, 384])
        .require(
            "accumulators, a row of the right tile and one broadcast fit the registers",
            lambda c: (c["tile_m"] + 1) * (c["tile_n"] // lanes) + 1 <= registers,
        )
        .require(
            "a strip of the right operand fits half the second level",
            lambda c: c["tile_k"] * c["tile_n"] * size <= on.far // 2,
        )
        .require("the tile is no taller than the result", lambda c: c["tile_m"] <= t.m)
        .require("the depth is no more than one step beyond k", lambda c: c["tile_k"] < t.k + 64)
    )


def _gpu_space(space: SearchSpace, t: OperatorTopology, on: Processor, size: int) -> SearchSpace:
    return (
        space.tile_m([16, 32, 64, 128, 256])
        .tile_n([32, 64, 128, 256])
        .tile_k([16, 32, 64])
        .stages([2, 3, 4])
        .warps([2, 4, 8])
        .require(
            "both operands' tiles of all stages fit shared memory",
            lambda c: (c["tile_m"] + c["tile_n"]) * c["tile_k"] * c["stages"] * size <= on.near,
        )
        .require(
            "accumulators fit the registers of their threads",
            lambda c: c["tile_m"] * c["tile_n"] <= 128 * 32 * c["warps"],
        )
        .require(
            "every warp has a fragment of 16x16",
            lambda c: (c["tile_m"] // 16) * (c["tile_n"] // 16) >= c["warps"],
        )
        .require("a tile is at most twice the result", lambda c: c["tile_m"] < 2 * max(t.m, 16))
    )


def _nests(tile: int, block: int) -> bool:
    return tile % block == 0 or block % tile == 0


# ---- modelled time ---------------------------------------------------------------------

_GHZ = {"cpu": 4.0, "cuda": 1.6}
_NEAR_BYTES = 64.0
"""Bytes per cycle from the second level to the first."""
_LATENCY = 4.0


def modelled_us(
    topology: OperatorTopology, on: Processor, dtype: str = "f32"
) -> Callable[[Config], float]:
    """Return a function that predicts the µs of a configuration on one core or SM, for ranking.

    The time is the longer of arithmetic, on results padded to whole tiles and at the fraction of
    peak that the tile reaches, and of the traffic that its reuse leaves.
    """
    size, share = _BYTES[dtype], topology.flops / (2.0 * topology.m * topology.n * topology.k)

    def time(config: Config) -> float:
        m, n = config["tile_m"], config["tile_n"]
        padded = ceil(topology.m / m) * m * ceil(topology.n / n) * n * topology.k * share
        cycles = 2.0 * padded / (on.flops * _fill(config, on))
        moved = padded * (1.0 / _rows(config, topology) + 1.0 / n) * size
        return max(cycles, moved / _NEAR_BYTES) / _GHZ[on.device] * 1e-3

    return time


def _fill(config: Config, on: Processor) -> float:
    """Fraction of multiply-add slots a tile uses."""
    if on.device == "cpu":
        vectors = config["tile_m"] * config["tile_n"] / on.lanes
        loads = config["tile_m"] + config["tile_n"] / on.lanes
        return min(1.0, vectors / (2 * _LATENCY), vectors / loads)
    ahead = 1.0 - 1.0 / (2.0 * config["stages"])
    return ahead * min(1.0, config["tile_m"] * config["tile_n"] / (64.0 * 64.0))


def _rows(config: Config, t: OperatorTopology) -> int:
    """Rows that share one read of the right operand's tile."""
    return max(config["tile_m"], min(config.get("rows", 1), t.m))
