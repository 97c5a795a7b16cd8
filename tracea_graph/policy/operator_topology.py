"""Topology of an operator: its sizes, and the structure that its right operand has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracea_graph.errors import UsageError
from tracea_graph.kernels.operations import KernelOperation

__all__ = [
    "BlockSparse",
    "Channelwise",
    "Dense",
    "Kind",
    "LowRank",
    "OperatorTopology",
    "Permuted",
    "Pointwise",
    "Rowwise",
    "Transformed",
    "UnstructuredSparse",
    "Windowed",
    "dtype_of",
    "fallback_dtypes",
    "topology_of",
]

_NAMES = {
    "fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "half": "f16",
    "bfloat16": "bf16", "i16": "int16", "i8": "int8",
}  # fmt: skip


_FALLBACK = {"bf16": "f16", "f16": "f32", "int8": "int16", "int16": "f32", "bf16x2": "f32"}
"""By element type, the type to compute in if no kernel computes in that one."""


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
class UnstructuredSparse:
    """A right operand of which the fraction ``density`` is not zero, at any positions."""

    density: float


@dataclass(frozen=True)
class Windowed:
    """A product of which row ``i`` needs only the columns within ``window`` of ``i``."""

    window: int


@dataclass(frozen=True)
class Transformed:
    """A convolution computed on transformed tiles of ``side × side`` results (Winograd)."""

    side: int


@dataclass(frozen=True)
class Channelwise:
    """A product of one column per channel, as in a depthwise convolution."""


@dataclass(frozen=True)
class Rowwise:
    """No product: each of ``m`` rows of ``n`` numbers is reduced or normalized."""


@dataclass(frozen=True)
class Pointwise:
    """No product: ``m × n`` numbers are computed, copied or looked up one by one."""


@dataclass(frozen=True)
class Permuted:
    """A copy that changes which axis is contiguous; nothing is multiplied."""


Kind = (
    Dense | LowRank | BlockSparse | UnstructuredSparse | Windowed | Transformed | Channelwise
    | Rowwise | Pointwise | Permuted
)  # fmt: skip


@dataclass(frozen=True)
class OperatorTopology:
    """One operator's ``batch`` times ``m × n`` results, each a sum over ``k``, and its structure.

    * ``op``, ``dtype``: operation and element type of the kernel call;
    * ``kind``: structure of the right operand or, without a product, of the computation;
    * ``operands``: number of tensors that the call's elementwise expression reads;
    * ``static``: whether ``batch`` and ``m`` are constants of the model; otherwise they follow
      from assumed symbol values and differ between runs;
    * ``static_columns``: whether ``n`` is a constant of the model;
    * ``tiles``: tiles of the variants that a backend runs for the call's operands, best first;
      empty if they follow from the sizes alone.

    Raises UsageError for sizes below 1, and for structure that does not fit them.
    """

    op: str
    m: int
    n: int
    k: int
    kind: Kind = Dense()
    dtype: str = "f32"
    batch: int = 1
    operands: int = 0
    static: bool = True
    static_columns: bool = True
    tiles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.batch, self.m, self.n, self.k) < 1:
            sizes = ", ".join(map(str, (self.batch, self.m, self.n, self.k)))
            raise UsageError(f"{self.op} needs sizes above 0, not {sizes}")
        match self.kind:
            case LowRank(rank) if not 1 <= rank <= min(self.k, self.n):
                raise UsageError(f"rank {rank} is not between 1 and {min(self.k, self.n)}")
            case BlockSparse(rows, columns, density):
                if min(rows, columns) < 1 or not 0 <= density <= 1:
                    raise UsageError(f"invalid blocks: {rows}x{columns}, density {density:g}")
            case UnstructuredSparse(density) if not 0 <= density <= 1:
                raise UsageError(f"density {density:g} is not between 0 and 1")
            case Windowed(window) if window < 1:
                raise UsageError(f"a window of {window} contains no columns")

    @property
    def flops(self) -> float:
        """Operations, not counting skipped ones; for Winograd, those of the direct convolution."""
        dense = 2.0 * self.batch * self.m * self.n * self.k
        match self.kind:
            case LowRank(rank):
                return 2.0 * self.batch * self.m * rank * (self.k + self.n)
            case BlockSparse(_, _, density) | UnstructuredSparse(density):
                return dense * density
            case Windowed(window):
                return dense * min(1.0, (2 * window + 1) / self.n)
        return dense

    @property
    def moved(self) -> float:
        """Elements of all operands and results, each counted once."""
        results = float(self.batch * self.m * self.n)
        if isinstance(self.kind, Rowwise | Pointwise | Permuted):
            return 2.0 * results
        right = float(self.k * self.n)
        match self.kind:
            case LowRank(rank):
                right = float(rank * (self.k + self.n))
            case BlockSparse(_, _, density) | UnstructuredSparse(density):
                right *= density
        return results + self.batch * (self.m * self.k + right)

    def __str__(self) -> str:
        sizes = f"{self.m}×{self.n}" + (f"×{self.k}" if self.k > 1 else "")
        return f"{self.op} {f'{self.batch}·' if self.batch > 1 else ''}{sizes} {self.dtype}"


def topology_of(
    operation: KernelOperation, op: str, shape: tuple[int, ...], dtype: str
) -> OperatorTopology:
    """Return the topology of an operation that the kernel call ``op`` computes.

    Raises UsageError unless the shape has all sizes of the operation, each above 0.
    """
    if len(shape) != len(operation.sizes) or min(shape, default=0) < 1:
        raise UsageError(
            f"{operation.name} takes {len(operation.sizes)} sizes above 0, "
            f"{','.join(operation.sizes)}, not {','.join(map(str, shape))}"
        )
    batch, m, n, k = operation.problem(shape)
    kind: Kind = Dense()
    match operation.structure, shape[len(operation.sizes) - 2 :]:
        case "low-rank", (_, rank):
            kind = LowRank(rank)
        case "blocks", (block, percent):
            kind = BlockSparse(block, _BLOCK_COLUMNS, min(percent, 100) / 100)
        case "bitmap", (_, percent):
            kind = UnstructuredSparse(min(percent, 100) / 100)
        case "window", (_, window):
            kind = Windowed(window)
        case "transformed", _:
            kind = Transformed(2 if dtype == "int16" else 4)
        case "channels", _:
            kind = Channelwise()
        case "rows", _:
            kind = Rowwise()
        case "elements", _:
            kind = Pointwise()
    return OperatorTopology(op, m, n, k, kind, dtype, batch)


_BLOCK_COLUMNS = 16
"""Columns of a stored block; the backends that skip blocks have one width."""


def dtype_of(precision: str) -> str:
    """Return the name of a precision in kernel calls, such as ``f32`` for ``fp32``."""
    word = precision.lower().replace("-", "_")
    return _NAMES.get(word, word)


def fallback_dtypes(dtype: str) -> Iterator[str]:
    """Yield ``dtype``, then its fallback types in the order in which they are tried."""
    yield dtype
    while dtype != "f32":
        dtype = _FALLBACK.get(dtype, "f32")
        yield dtype
