"""Layer norm, matmul with an activation, and a second matmul in one launch, for sm_90a.

Rows are short: those of ConvNeXt's first two stages, whose 96 and 192 columns pass through 384 and
768.  Weights lie in shared memory as a whole, or pass through it for each tile.  A call stands for
one of three calls (``part``): kernels of their own compute them where no warpgroup kernel does;
where it does, the last one launches it and the others launch nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, MLP_PARTS
from tracea_graph.kernels.gpu.families.fast_gelu import GELU_PAIRS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    f32,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import (
    Instruction,
    MatrixOperand,
    prove_read,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, ROW, Chain, Step

__all__ = ["CHAIN_ATTRIBUTES", "GROUP", "chain_of_part", "launch", "name", "parameters", "part_of",
           "refusal", "shared", "with_sizes"]  # fmt: skip

CHAIN_ATTRIBUTES = ("activation",)
"""Attributes that give the chain of a part which the call does not hold."""
GROUP = 32
"""Number of columns among which those of a lane's fragments are adjacent in memory."""
_ROWS, _PART, _LINE = 64, 64, 128
"""Rows of a warpgroup, hidden columns of a step, and bytes of a row in shared memory."""
_MOST_HELD = 200 << 10
"""Maximum bytes of weights in shared memory."""
_WIDEST = MappingProxyType({2: 192, 3: 96})
"""Maximum columns of x and y by the number of warpgroups: registers hold rows of both."""


@dataclass(frozen=True)
class WeightRing:
    """Both weights in shared memory, in stages of 64 hidden columns.

    All parts have a stage of their own if they fit; otherwise a ring of stages is filled for every
    tile anew.
    """

    depth: int
    hidden: int
    columns: int

    @property
    def w1(self) -> MatrixOperand:
        """Operand of the first matmul, of one panel of 64 columns of x."""
        return MatrixOperand(_PART, _LINE // 2, True)

    @property
    def w2(self) -> MatrixOperand:
        return MatrixOperand(self.columns, _LINE // 2, True)

    @property
    def panels(self) -> int:
        return ceil(self.depth / (_LINE // 2))

    @property
    def w2_at(self) -> int:
        return self.panels * self.w1.nbytes

    @property
    def stage_bytes(self) -> int:
        return self.w2_at + self.w2.nbytes

    @property
    def parts(self) -> int:
        return self.hidden // _PART

    @property
    def stages(self) -> int:
        return min(self.parts, _MOST_HELD // self.stage_bytes)

    @property
    def streamed(self) -> bool:
        return self.stages < self.parts

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.MBARRIER)


@dataclass(frozen=True)
class HeldVector:
    """An operand of one number per column, in shared memory from byte ``at`` on in float32.

    The epilogue reads it if it is ``late``.
    """

    name: str
    count: int
    at: int
    late: bool


@cache
def _proved(weights: WeightRing) -> WeightRing:
    """Prove that instructions read what copies write; raises GraphError otherwise."""
    prove_read(weights.w1, _PART)
    prove_read(weights.w2, weights.columns)
    if weights.streamed:
        prove(weights.ring)
    return weights


def _weights(call: Call) -> WeightRing:
    named: dict[str, Any] = CALLS.of(call).named(call)
    hidden, depth = named["w1"].dims
    return WeightRing(depth, hidden, named["w2"].dims[0])


def _vectors(call: Call) -> tuple[HeldVector, ...]:
    weights = _weights(call)
    columns = weights.columns
    counts = {"gamma": weights.depth, "beta": weights.depth, "bias1": weights.hidden,
              "bias2": columns}  # fmt: skip
    counts |= {f"x{x.index}": columns for x in _given(call) if x.kind == ROW}
    at, made = weights.stages * weights.stage_bytes, list[HeldVector]()
    for name, count in counts.items():
        made.append(HeldVector(name, count, at, name == "bias2" or name[0] == "x"))
        at += 4 * count
    return tuple(made)


@dataclass(frozen=True)
class Given:
    """An operand of the epilogue: its number, kind, name and element type."""

    index: int
    kind: str
    name: str
    element: str
    dtype: DType


def _given(call: Call) -> tuple[Given, ...]:
    assert call.chain is not None
    listed = chain_parameters.operands(call.chain)[1:]
    return tuple(Given(x.index, x.kind, f"x{x.index}", x.element, x.dtype) for x in listed)


def chain_of_part(part: str, activation: str, dtype: str) -> Chain:
    """Return the chain of a norm or of the first matmul, which calls do not hold."""
    own = TYPES[dtype]
    if part == MLP_PARTS[0]:
        return Chain((FULL,), (), (0,), (own,))
    return Chain((FULL,), (Step(activation, (0,)),), (1,), (), (own,))


def part_of(call: Call) -> Call:
    """Return the norm or the matmul that a call stands for."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    part = str(call.attributes["part"])
    chain = chain_of_part(part, str(call.attributes["activation"]), call.dtype)
    if part == "norm":
        made = CALLS.make("norm", call.dtype, x=[named["x"]], gamma=named["gamma"],
                          beta=named["beta"], y=named["normed"], kind="layer",
                          epsilon=call.attributes["epsilon"], chain=chain)  # fmt: skip
    elif part == "up":
        made = CALLS.make("gemm", call.dtype, x=named["normed"], w=named["w1"],
                          bias=named["bias1"], y=[named["hidden"]], layout="nk",
                          chain=chain)  # fmt: skip
    else:
        made = CALLS.make("gemm", call.dtype, x=named["hidden"], w=named["w2"],
                          bias=named["bias2"], inputs=named["inputs"], y=named["y"], layout="nk",
                          chain=call.chain)  # fmt: skip
    return replace(made, step=call.step)


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the weights' sizes, on which the kernel's source depends."""
    places, views = CALLS.of(call).slices(call), list(skeleton.views)
    for operand in ("w1", "w2"):
        at = places[operand].start
        view, own = views[at], call.views[at]
        assert view is not None and own is not None
        views[at] = replace(view, dims=own.dims)
    return replace(skeleton, views=tuple(views))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    sizes = (*named["w1"].dims, *named["w2"].dims)
    if not all(isinstance(n, int) for n in sizes):
        return "sizes of the weights are unknown"
    weights = _weights(call)
    if weights.depth % GROUP or weights.columns % GROUP or weights.hidden % _PART:
        return f"columns are no multiple of {GROUP}, or hidden ones of {_PART}"
    most, streams = _WIDEST[variant.params["groups"]], bool(variant.params["streamed"])
    if max(weights.depth, weights.columns) > most:
        return f"rows have more than {most} columns"
    if weights.streamed != streams:
        fits = "do not fit" if weights.streamed else "fit"
        return f"the weights {fits} into shared memory"
    chain, own = call.chain, TYPES[call.dtype]
    if chain is None or chain.result_types != (own,):
        return "there are several results, or of another type"
    kinds = [x.kind for x in _given(call)]
    if kinds.count(FULL) > 1 or set(kinds) - {FULL, ROW}:
        return "the epilogue reads more than one matrix and rows"
    if any(x.dtype is not own if x.kind == FULL else int(x.dtype.size) < 2 for x in _given(call)):
        return "the epilogue reads a matrix of another type"
    matrices = [named["x"], *named["y"]]
    matrices += [v for x, v in zip(_given(call), named["inputs"], strict=True) if x.kind == FULL]
    vectors = [named[n] for n in ("gamma", "beta", "bias1", "bias2")]
    vectors += [v for x, v in zip(_given(call), named["inputs"], strict=True) if x.kind == ROW]
    if any(v.strides[-1] != 1 for v in (*matrices, *vectors)):
        return "rows and vectors are not contiguous"
    if any(v.buffer.kind != "temp" for v in matrices):
        return "rows are those of an input or output, which may lie at any address"
    steps = [s for v in matrices for s in (v.strides[0], v.offset)]
    if not all(isinstance(s, int) and s % 8 == 0 for s in steps):
        return "rows are not aligned to 16 bytes"
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "vectors leave no shared memory for the weights"
    return ""


def name(call: Call) -> str:
    weights = _weights(call)
    sizes = f"{weights.depth}x{weights.hidden}x{weights.columns}"
    key = f"_{call.chain.key:016x}" if call.chain else ""
    return f"mlp_{sizes}_{call.attributes['activation']}{key}"


def _barriers_at(call: Call) -> int:
    last = _vectors(call)[-1]
    return ceil((last.at + 4 * last.count) / 16) * 16


def shared(call: Call, variant: Variant) -> int:
    return _barriers_at(call) + 8 * 2 * _weights(call).stages


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    assert call.chain is not None
    weights, given = _proved(_weights(call)), _given(call)
    activation = str(call.attributes["activation"])
    own = replace(chain_of_part("up", activation, call.dtype), fast_math=True)
    instructions = [Instruction(n, True, True) for n in dict.fromkeys((_PART, weights.columns))]
    return {
        **chain_parameters.chain_template_parameters(call.chain),
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "kind": call.dtype,
        "instructions": instructions,
        "gelu": GELU_PAIRS.get(str(call.attributes["activation"]))
        if call.dtype == "f16"
        else None,
        "activation": call.attributes["activation"],
        "activating": chain_source.chain_statements(own),
        "activated": chain_source.chain_results(own)[0].expression,
        "depth": weights.depth,
        "hidden": weights.hidden,
        "columns": weights.columns,
        "parts": weights.parts,
        "stages": weights.stages,
        "stage_bytes": weights.stage_bytes,
        "panels": weights.panels,
        "w1": weights.w1,
        "w2": weights.w2,
        "w2_at": weights.w2_at,
        "vectors": _vectors(call),
        "barriers_at": _barriers_at(call),
        "given": given,
        "matrices": [x for x in given if x.kind == FULL],
    }


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; that of a part other than the last has no blocks."""
    taken = shared(call, variant)
    if call.attributes["part"] != MLP_PARTS[-1]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    named: dict[str, Any] = CALLS.of(call).named(call)
    own, weights, (y,) = TYPES[call.dtype], _weights(call), named["y"]
    turned = named["turned1"], named["turned2"]
    made: list[Argument] = [
        tensor_map(view, own, operand.box)
        for view, operand in zip(turned, (weights.w1, weights.w2), strict=True)
    ]
    made += [pointer(named["x"], own), i32(named["x"].strides[0])]
    made += [pointer(named[n], DType.F32) for n in ("gamma", "beta", "bias1", "bias2")]
    for x, view in zip(_given(call), named["inputs"], strict=True):
        made += [pointer(view, x.dtype), *([i32(view.strides[0])] if x.kind == FULL else [])]
    rows = y.dims[0]
    made += [pointer(y, own), i32(y.strides[0]), i32(rows), f32(call.attributes["epsilon"])]
    made += map(constant_buffer_flag, turned)
    blocks = combine("ceildiv", rows, _ROWS * variant.params["groups"])
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made), persistent=1)
