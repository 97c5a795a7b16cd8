"""Attention as tuning problems: for any number of tokens of a sequence, or of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any, ClassVar

from tracea_graph.ir import Extent, TensorSpec, combine
from tracea_graph.kernels.gpu.attention_choice import keys_fit
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.attention import MASKS
from tracea_graph.kernels.gpu.families.few_key_attention import visits_refusal
from tracea_graph.kernels.gpu.schedule import IMAGE_SCHEDULES, TILE_SCHEDULES
from tracea_graph.kernels.gpu.schedules.matmul_problem import TensorCoreProblem
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Buffer, Call, Program, Schedule, View
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.policy import OperatorTopology

__all__ = ["AttentionProblem", "attention_from_json", "attention_of"]

_ALIGN = 8
"""Elements between starts of operands and rows that every kernel reads at full speed."""


@dataclass(frozen=True)
class AttentionProblem(TensorCoreProblem):
    """One attention ``y = softmax(scale · q kᵀ + mask) v``.

    If ``queries`` is 0, rows are the tokens of ``batch`` sequences, and ``keys`` is 0 if there are
    as many keys as queries.  Otherwise rows are sequences, of fixed lengths.

    ``pitches`` are the elements between rows of q, k, v and y where all heads of a token are
    adjacent; 0 where each head has rows of its own.  ``reads`` says along which of the axes batch,
    head, query and key the mask differs.  ``filled`` says whether excluded scores are finite.
    """

    heads: int
    heads_k: int
    head: int
    head_v: int
    multiplies: str
    batch: int = 1
    queries: int = 0
    keys: int = 0
    pitches: tuple[int, int, int, int] = (0, 0, 0, 0)
    mask: str = "none"
    reads: tuple[bool, bool, bool, bool] = (False, False, False, False)
    order: str = "none"
    filled: bool = False
    capped: bool = False
    guarded: bool = False
    static: bool = False
    op: ClassVar[str] = "attention"
    epilogue: ClassVar[None] = None

    @property
    def n(self) -> int:
        """Number of columns of results."""
        return self.heads * self.head_v

    @property
    def k(self) -> int:
        """Sum of both head sizes, each of which is the depth or the width of a matmul."""
        return self.head + self.head_v

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The rule's tile for each range of tokens or sequences."""
        return IMAGE_SCHEDULES if self.queries else TILE_SCHEDULES

    @property
    def unit(self) -> str:
        return "sequence" if self.queries else "token"

    @property
    def weight_bytes(self) -> int:
        """0: attention reads no weights."""
        return 0

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name, as in telemetry and entry points of candidates."""
        return {"heads": self.heads, "head": self.head, "queries": self.queries, "keys": self.keys}

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that identify the problem in the cache."""
        own = {**asdict(self), "pitches": list(self.pitches), "reads": list(self.reads)}
        return {"kernel": Call.name_of("attention", own.pop("multiplies")), **own}

    def rows_of(self, dims: Sequence[int]) -> int:
        """Return the tokens or sequences of a call from the dims of q; 0 for other batches."""
        batch, _, queries, _ = dims
        if self.queries:
            return batch
        return queries if batch == self.batch else 0

    def _sides(self, rows: int) -> tuple[int, int, int]:
        """Return the batch, and the numbers of queries and keys."""
        if self.queries:
            return rows, self.queries, self.keys
        return self.batch, rows, self.keys or rows

    def topology(self, rows: int) -> OperatorTopology:
        """Return the topology of the call with ``rows`` tokens or sequences."""
        batch, queries, keys = self._sides(rows)
        return OperatorTopology(
            "attention", queries, keys, 2 * max(self.head, self.head_v),
            batch=batch * self.heads, dtype=self.multiplies,
        )  # fmt: skip

    def fits(self, variant: Variant, rows: int) -> bool:
        """Return whether a kernel holds as many keys as there are."""
        fit = keys_fit(variant, self._sides(rows)[2])
        return isinstance(fit, int) and fit > 0

    def flops(self, rows: int) -> float:
        """Return the number of operations for ``rows`` tokens or sequences."""
        batch, queries, keys = self._sides(rows)
        return 2.0 * batch * self.heads * queries * keys * self.k

    def moved(self, rows: int) -> float:
        """Return the bytes of q, k, v and y for ``rows`` tokens or sequences."""
        batch, queries, keys = self._sides(rows)
        each = queries * self.heads * self.k + keys * self.heads_k * self.k
        return float(self.element.size) * batch * each

    def __str__(self) -> str:
        name = Call.name_of("attention", self.multiplies)
        sides = f", {self.queries} queries" if self.queries else ""
        sides += f", {self.keys} keys" if self.keys else ""
        end = " + mask" if self.mask != "none" else ""
        return f"{name} {self.heads} heads of {self.head}{sides}{end}"

    def program(self, schedules: tuple[Schedule, ...] = (), rows: Extent = "m") -> Program:
        """Build a program of this call only; its last input is the previous program's result.

        Operands that share a buffer in a model have one each, with the same pitch.
        """
        batch: Extent = rows if self.queries else self.batch
        queries: Extent = self.queries or rows
        keys: Extent = self.keys or queries
        inputs, outputs = list[TensorSpec](), list[TensorSpec]()

        def placed(kind: str, dims: tuple[Extent, ...], pitch: int) -> View:
            held = inputs if kind == "input" else outputs
            n, _, length, _ = dims
            shape = (n, length, pitch) if pitch else dims
            held.append(TensorSpec(self.element, shape))
            return View(Buffer(kind, len(held) - 1), dims, _strides(dims, pitch))

        own = self.pitches
        named: dict[str, Any] = {
            "q": placed("input", (batch, self.heads, queries, self.head), own[0]),
            "k": placed("input", (batch, self.heads_k, keys, self.head), own[1]),
            "v": placed("input", (batch, self.heads_k, keys, self.head_v), own[2]),
        }
        if self.mask != "none":
            dims = (batch, self.heads, queries, keys)
            kept = tuple(d if reads else 1 for d, reads in zip(dims, self.reads, strict=True))
            inputs.append(TensorSpec(MASKS[self.mask], kept))
            steps = zip(dense_strides(kept), self.reads, strict=True)
            strides = tuple(step if reads else 0 for step, reads in steps)
            named["mask"] = View(Buffer("input", 3), dims, strides)
        named["y"] = placed("output", (batch, self.heads, queries, self.head_v), own[3])
        call = CALLS.make(
            "attention", self.multiplies, schedules=schedules, **named, mask_kind=self.mask,
            order=self.order, zero_rows="guarded" if self.guarded else "none", scale=1.0,
            fill=-1e9 if self.filled else -inf, softcap=1.0 if self.capped else 0.0,
        )  # fmt: skip
        inputs.append(outputs[0])
        at = 0 if self.queries else 1 if own[0] else 2
        return Program(tuple(inputs), tuple(outputs), {"m": (0, at)}, (), (call,))

    def call(self, rows: int, schedules: tuple[Schedule, ...] = ()) -> Call:
        """Return the call, for a fixed number of sequences if the model fixes it."""
        return self.program(schedules, rows if self.static else "m").calls[0]


def attention_of(call: Call) -> AttentionProblem | None:
    """Return the problem of a call.

    Returns None for lengths that vary with another size (caches), for operands that are neither
    dense nor rows of all heads, for scales that are not positive, for float32, and for queries
    that do not visit all keys.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    q, k, v, y, a = named["q"], named["k"], named["v"], named["y"], call.attributes
    batch, heads, queries, head = q.dims
    heads_k, keys = k.dims[1:3]
    head_v = v.dims[3]
    if not all(isinstance(n, int) for n in (heads, heads_k, head, head_v)) or a["scale"] <= 0:
        return None
    if visits_refusal(call) or call.dtype.startswith("tf32"):
        return None
    fixed = isinstance(queries, int)
    if not isinstance(keys, int) and (fixed or keys != queries):
        return None
    if not fixed and not isinstance(batch, int):
        batch = 1  # other batches are left to the rule
    pitches = [pitch for view in (q, k, v, y) if (pitch := _pitch(view)) is not None]
    mask = named["mask"]
    if len(pitches) < 4 or (mask is not None and mask.strides[3] not in (0, 1)):
        return None
    reads: Any = (False,) * 4 if mask is None else tuple(step != 0 for step in mask.strides)
    four: Any = tuple(pitches)
    return AttentionProblem(
        heads, heads_k, head, head_v, call.dtype, 1 if fixed else batch,
        queries if fixed else 0, keys if isinstance(keys, int) else 0, four,
        str(a["mask_kind"]), reads, str(a["order"]), a["fill"] != -inf, a["softcap"] > 0,
        a["zero_rows"] == "guarded", fixed and isinstance(batch, int),
    )  # fmt: skip


def _strides(dims: tuple[Extent, ...], pitch: int) -> tuple[Extent, ...]:
    """Return the strides of an operand; see ``pitches`` of :class:`AttentionProblem`."""
    _, _, length, head = dims
    return (combine("mul", length, pitch), head, pitch, 1) if pitch else dense_strides(dims)


def _pitch(view: View) -> int | None:
    """Return the pitch of an operand; None if it lies otherwise, or not aligned."""
    if not isinstance(view.offset, int) or view.offset % _ALIGN:
        return None
    pitch = view.strides[2] if isinstance(view.strides[2], int) else 0
    for known in (0, pitch):
        if _alike(view.strides, _strides(view.dims, known), view.dims):
            return None if known % _ALIGN else known
    return None


def _alike(a: Sequence[Extent], b: Sequence[Extent], dims: Sequence[Extent]) -> bool:
    """Whether strides place the same elements; those of axes of size 1 do not matter."""
    return all(x == y or n == 1 for x, y, n in zip(a, b, dims, strict=True))


def attention_from_json(data: Mapping[str, Any]) -> AttentionProblem:
    """Parse a problem's key.  Raises KeyError, TypeError, ValueError."""
    numbers: dict[str, Any] = {}
    for field in fields(AttentionProblem):
        own = data["dtype" if field.name == "multiplies" else field.name]
        if field.name in ("pitches", "reads"):
            kind = int if field.name == "pitches" else bool
            numbers[field.name] = tuple(kind(n) for n in own)
            if len(own) != 4:
                raise ValueError(f"{field.name} of attention are four, not {len(own)}")
        else:
            numbers[field.name] = {"int": int, "str": str, "bool": bool}[str(field.type)](own)
    return AttentionProblem(**numbers)
