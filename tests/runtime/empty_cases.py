"""Programs over values without elements, and what ONNX Runtime makes of them.

Images without lines, columns or both, batches of nothing, no rows, no keys.  Windows reach far
into their padding, so that results of convolutions have elements all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from tests.convolutions import ADD_RELU, CLIP_MUL, SILU, conv, window
from tests.convolutions import CASES as CONVOLUTIONS
from tests.convolutions import Case as Operation
from tests.graphs import run_body
from tests.kernels.lowering.test_lower import CASES as OTHERS
from tests.kernels.lowering.test_lower_conv import program as lowered
from tests.runtime.bf16_cases import bf16_cases
from tests.runtime.bf16x2_cases import bf16x2_cases
from tests.runtime.cases import Array, all_cases
from tests.runtime.conv_integer_cases import conv_integer_cases
from tests.runtime.guard_cases import compared
from tests.runtime.support import Case
from tracea_graph.config import TOLERANCE
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.cpu.filters import DepthwiseFilters
from tracea_graph.kernels.program import Program
from tracea_graph.ops import OpParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.recurrent import RecurrentParams

__all__ = ["Empty", "empty_cases"]

SIZES = (
    *({"n": 2, "h": h, "w": w} for h, w in ((0, 0), (0, 1), (0, 3), (1, 0), (3, 0))),
    {"n": 0, "h": 3, "w": 4},
    {"n": 0, "h": 0, "w": 3},
)
WINDOWS = {
    "1x1": window(1, pads=1),
    "1x1, stride 2": window(1, 2, pads=1),
    "3x3": window(3, pads=2),
    "3x3, stride 2": window(3, 2, pads=2),
    "5x3, asymmetric": window((5, 3), pads=(3, 1, 2, 2)),
    "3x3, dilation 2": window(3, 1, 2, 3),
    "1x3, columns alone": window((1, 3), pads=(0, 1, 0, 1)),
    "3x3, at two corners": window(3, pads=(3, 0, 0, 3)),
    "over one axis": window((1,), pads=1),
    "over one axis, stride 2": window((3,), 2, pads=2),
}
"""Outputs of most lie in the padding alone."""
VOLUMES = {"1x1x1": window((1, 1, 1), pads=1), "3x2x2": window((3, 2, 2), pads=2)}
FILTERS = {
    "blocked": (20, 33, "blocked", 1),
    "blocked, half a block": (20, 8, "blocked", 1),
    "narrow": (40, 3, "blocked", 1),
    "groups of blocks": (32, 64, "blocked", 2),
    "first_layer": (3, 24, "first_layer", 1),
    "depthwise": (20, 20, "depthwise", 20),
    "plain": (6, 10, "plain", 1),
    "grouped": (6, 10, "plain", 2),
    "vnni2": (20, 33, "vnni2", 1),
    "pairs, groups": (32, 64, "vnni2", 2),
    "integers": (19, 33, "int16", 1),
    "broad blocks": (64, 33, "nchw32c", 1),
    "halves": (20, 33, "bf16x2", 1),
}
POST_OPS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "": (None, ()),
    "silu": (SILU, ()),
    "residual": (ADD_RELU, ("full",)),
    "clamped": (CLIP_MUL, ("full", "channel", "one")),
}
LOW = 2e-2
"""Of max|y|, where numbers have 16 bits: bodies say nothing of how values between are rounded."""


@dataclass(frozen=True)
class Empty:
    """A case; ``expected`` is None where ONNX Runtime refuses the sizes: so may we."""

    case: Case
    expected: tuple[Array, ...] | None
    limit: float


def _windowed() -> Iterator[tuple[str, Operation]]:
    """Convolutions in every layout, with all that may follow in turn."""
    post_ops = itertools.cycle(POST_OPS.items())
    for (kind, (c, o, layout, groups)), (name, over) in itertools.product(
        FILTERS.items(), (WINDOWS | VOLUMES).items()
    ):
        if over.rank == 3 and layout != "plain":
            continue
        end, (chain, kinds) = next(post_ops)
        plain = conv(c, o, over, layout, groups)
        (result,) = plain.params.infer(plain.specs)
        each = ("n", o, *(1,) * over.rank)
        shapes = {"full": result.shape, "channel": each, "one": (1,)}
        epilogue_inputs = (shapes[kind] for kind in kinds)
        yield (
            f"{kind}, {name} {end}",
            conv(c, o, over, layout, groups, *epilogue_inputs, epilogue=chain),
        )
    plain = conv(20, 20, window(3, pads=2), "depthwise", 20, bias=False)
    for rounded in (False, True):
        params = replace(plain.params, layout=DepthwiseFilters(True, rounded))
        yield f"depthwise in bf16 {rounded}", replace(plain, params=params)


def _answered(name: str, params: OpParams, program: Program, arrays: Sequence[Array]) -> Empty:
    try:
        found = None if _dies(params) else tuple(run_body(params.body(17), arrays, 17))
    except (Fail, InvalidArgument, RuntimeException):
        found = None
    types = {t.dtype for t in program.inputs}
    limit = LOW if types & {DType.BF16, DType.I16} else TOLERANCE.exact
    return Empty(Case(name, program, tuple(arrays)), found, limit)


def _dies(params: OpParams) -> bool:
    """ONNX Runtime ends the process over a sequence of nothing."""
    return isinstance(params, RecurrentParams)


def _images() -> Iterator[Empty]:
    for name, case in (*_windowed(), *CONVOLUTIONS.items()):
        program = lowered(case)
        for sizes in SIZES:
            if not sizes["n"] and not sizes["h"] and isinstance(case.params, PoolParams):
                continue  # whose size ONNX Runtime takes for 1, of no image
            label = f"{name} {tuple(sizes.values())}"
            yield _answered(label, case.params, program, case.arrays(sizes))


def _rows() -> Iterator[Empty]:
    for name, case in OTHERS.items():
        program, symbols = case.program, case.symbols
        for values in itertools.product((0, 1, 3), repeat=len(symbols)):
            if 0 in values:
                arrays = case.arrays(dict(zip(symbols, values, strict=True)))
                yield _answered(f"{name} {values}", case.params, program, arrays)


def _without(case: Case) -> Iterator[Empty]:
    """A case written by hand with some of its symbols 0: without results, or without keys."""
    program = case.program
    names, attends = list(program.symbols), case.program.calls[0].op == "attention"
    for zeros in itertools.product((False, True), repeat=len(names)):
        left = dict(zip(names, zeros, strict=True))
        sizes = {
            s: 0 if left[s] else case.feeds[i].shape[a] for s, (i, a) in program.symbols.items()
        }
        shapes, results = (
            [tuple(evaluate(d, sizes) for d in spec.shape or ()) for spec in specs]
            for specs in (program.inputs, program.outputs)
        )
        if not any(zeros) or (any(map(prod, results)) and not attends):
            continue
        cut = zip(case.feeds, shapes, strict=True)
        feeds = tuple(x[tuple(map(slice, shape))] for x, shape in cut)
        label = f"{case.name} without {[s for s in names if left[s]]}"
        # at places that are not there, or windows that no image has room for
        unknown = case.name.startswith(("append", "attention_placed"))
        unknown = unknown or any(dim < 0 for shape in results for dim in shape)
        expected = None if unknown else tuple(map(np.zeros, results))
        yield Empty(replace(case, name=label, feeds=feeds), expected, 0.0)


@cache
def empty_cases() -> tuple[Empty, ...]:
    """Every kernel and every layout change, with nothing to work on."""
    written = (*all_cases(), *bf16_cases(), *bf16x2_cases(), *conv_integer_cases())
    by_hand = [case for case in written if not case.error]
    nothing = [np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    guard = Empty(compared("of_nothing", nothing, nothing), (np.array([True]),), 0.0)
    without = itertools.chain.from_iterable(map(_without, by_hand))
    return (*_images(), *_rows(), *without, guard)
