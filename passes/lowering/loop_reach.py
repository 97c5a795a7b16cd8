"""How a call follows the rows of its results: which rows of each view it needs for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tracea_graph.ir import combine, product
from tracea_graph.ops.program import Call, View

__all__ = [
    "CUTS", "HALOED", "SAME", "NotCut", "Reach", "as_rows", "in_turns", "made_together", "read",
    "results", "written",
]  # fmt: skip


class NotCut(ValueError):
    """Why some calls cannot run in bands of rows."""


@dataclass(frozen=True)
class Reach:
    """Rows [n0, n1) of a result need rows [n0·stride, (n1 − 1)·stride + span) of a view."""

    stride: int = 1
    span: int = 1


SAME = Reach()
Reaches = Sequence[Reach | None]


def _matrix(call: Call) -> Reaches:
    """A product: weights and bias whole."""
    whole = (1, 2, 3) if call.kernel == "gemm_blocks" else (1, 2)
    return [None if i in whole else SAME for i in range(len(call.views))]


def _norm(call: Call) -> Reaches:
    return [None if i in (1, 2) else SAME for i in range(len(call.views))]


def _alike(call: Call) -> Reaches:
    return [SAME for _ in call.views]


def _window(call: Call) -> Reaches:
    """A convolution: the first view is the box its windows read."""
    weight = call.views[1]
    assert weight is not None
    if call.kernel.startswith("winograd"):
        reach = Reach(1, 3)
    else:
        taps = weight.dims[1 if call.kernel.startswith("depthwise") else 2]
        if not isinstance(taps, int):
            raise NotCut("the window's height is not known")
        reach = Reach(call.ints[0], (taps - 1) * call.ints[2] + 1)
    return [reach, None, None, *(SAME for _ in call.views[3:])]


CUTS: Mapping[str, Callable[[Call], Reaches]] = MappingProxyType({
    "gemm": _matrix, "gemm_bf16": _matrix, "gemm_blocks": _matrix, "norm": _norm,
    "round_bf16": _alike, "elementwise": _alike, "halo": _alike,
    "conv": _window, "depthwise": _window, "winograd": _window,
    "conv_bf16": _window, "depthwise_bf16": _window, "winograd_bf16": _window,
})  # fmt: skip
"""The kernels that can work on some rows: for each view how far they reach, None for all of it."""
HALOED = ("conv", "depthwise", "winograd", "conv_bf16", "depthwise_bf16", "winograd_bf16", "halo")
"""Calls whose last four ints are the halo of their result."""


def written(call: Call) -> range:
    """The places of a call's results among its views."""
    count = 1
    if call.kernel == "norm":
        count = len(call.views) - 3
    elif call.kernel in ("round_int16", "round_images", "top_k"):
        count = 2
    elif call.kernel in (
        "gemm",
        "gemm_bf16",
        "gemm_int16",
        "gemm_bf16x2",
        "gemm_blocks",
        "elementwise",
    ):
        count = len(call.chain.results) if call.chain else call.ints[-1]
    return range(len(call.views) - count, len(call.views))


def results(call: Call) -> tuple[View, ...]:
    return tuple(v for i in written(call) if (v := call.views[i]) is not None)


def read(call: Call) -> Iterator[tuple[View, Reach | None]]:
    """What a call reads, and how far; None for what it needs all of."""
    own, reaches = written(call), CUTS[call.kernel](call)
    for i, (view, reach) in enumerate(zip(call.views, reaches, strict=True)):
        if view is not None and i not in own:
            yield view, reach


def made_together(call: Call) -> int:
    """Rows a call makes together: cut elsewhere, it would compute them otherwise."""
    return call.ints[0] if call.kernel.startswith("winograd") else 1


def in_turns(call: Call) -> Call:
    """The call as a loop has it: what lies around the rows of a turn need not be zeros."""
    if call.kernel not in ("conv", "conv_bf16"):
        return call
    return replace(call, ints=(*call.ints[:7], 0, 0, 0, 0, *call.ints[11:]))


def as_rows(call: Call) -> Call:
    """An elementwise call over the rows of matrices, where its views allow."""
    views = [v for v in call.views if v is not None]
    if call.kernel != "elementwise" or len(views[0].dims) in (2, 5):
        return call
    dims = views[0].dims
    if len(dims) < 2 or any(v.dims != dims for v in views):
        raise NotCut("an elementwise part is no matrix")
    merged = []
    for view in views:
        for axis in range(len(dims) - 2):
            inner = combine("mul", view.dims[axis + 1], view.strides[axis + 1])
            if view.strides[axis] != inner and dims[axis] != 1:
                raise NotCut("an elementwise part reads rows that lie apart")
        shape = (product(dims[:-1]), dims[-1])
        merged.append(View(view.buffer, shape, view.strides[-2:], view.offset))
    return replace(call, views=tuple(merged))
