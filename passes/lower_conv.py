"""Lowering of convolutions and pools, between values that lie plain or in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracea_graph.ops.chain import COL, FULL, ROW, Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import WINOGRAD
from tracea_graph.ops.gemm import LAYOUTS
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.program import View
from tracea_graph.ops.windows import Window
from tracea_graph.passes.blocked import last_block
from tracea_graph.passes.layout import halo_of
from tracea_graph.passes.lower_gemm import DRIVERS
from tracea_graph.passes.values import Values, four
from tracea_graph.passes.writer import Shape, Slot

__all__ = ["lower_conv", "lower_pool"]

_POOLS = ("max", "average", "average-inside")


def lower_conv(v: Values, p: ConvParams, operands: Sequence[int], result: int) -> None:
    """One convolution by the call its layout is for."""
    if p.layout == "plain":
        _plain(v, p, operands, result)
    elif p.layout == "panels":
        _panels(v, p, operands, result)
    else:
        _blocked(v, p, operands, result)


# ---- blocked -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Finish:
    """What follows the sum: ``add`` (an extra operand's number), a clamp, then a chain."""

    add: int | None
    low: float
    high: float
    chain: Chain | None


def _finish(epilogue: Chain | None) -> _Finish:
    """Take a full addend and a clamp off the front of a chain: registers do those.

    ``relu(acc + r)`` leaves no chain at all.
    """
    add, low, high = None, -math.inf, math.inf
    if epilogue is None:
        return _Finish(add, low, high, None)
    chain = epilogue
    if (taken := _addend(chain)) is not None:
        add, chain = taken
    if chain.steps and (bounds := _clamp(chain)) is not None:
        low, high = bounds
        chain = _without_first(chain)
    return _Finish(add, low, high, None if _is_identity(chain) else chain)


def _is_identity(chain: Chain) -> bool:
    return chain.results == (0,) and len(chain.operands) == 1


def _addend(chain: Chain) -> tuple[int, Chain] | None:
    """The full operand the first step adds to the accumulator, and the chain without it."""
    first = chain.steps[0] if chain.steps else None
    if first is None or first.op != "add" or 0 not in first.args:
        return None
    other = first.args[1] if first.args[0] == 0 else first.args[0]
    if not isinstance(other, int) or other == 0 or other >= len(chain.operands):
        return None
    if chain.operands[other] != FULL or _readers(chain, other) > 1 or _readers(chain, 0) > 1:
        return None
    rest = _without_first(chain)
    # the operand is gone: what comes after it moves down
    moved = tuple(Step(s.op, tuple(_down(a, other) for a in s.args)) for s in rest.steps)
    kinds = (*rest.operands[:other], *rest.operands[other + 1 :])
    dtypes = (*rest.dtypes[:other], *rest.dtypes[other + 1 :])
    results = tuple(r - (r > other) for r in rest.results)
    return other - 1, Chain(kinds, moved, results, dtypes)


def _down(ref: int | float, gone: int) -> int | float:
    return ref - 1 if isinstance(ref, int) and ref > gone else ref


def _clamp(chain: Chain) -> tuple[float, float] | None:
    """The bounds of a first step that clamps the accumulator, which nothing else reads."""
    step = chain.steps[0]
    if step.args[0] != 0 or _readers(chain, 0) > 1:
        return None
    if step.op == "relu":
        return 0.0, math.inf
    low, high = (*step.args[1:], None, None)[:2]
    if step.op == "clip" and isinstance(low, float) and isinstance(high, float) and low <= high:
        return low, high
    return None


def _readers(chain: Chain, value: int) -> int:
    reads = [a for s in chain.steps for a in s.args if isinstance(a, int)]
    return reads.count(value) + chain.results.count(value)


def _without_first(chain: Chain) -> Chain:
    """The chain whose first step's result is the accumulator."""
    count = len(chain.operands)

    def move(ref: int | float) -> int | float:
        if isinstance(ref, float) or ref < count:
            return ref
        return 0 if ref == count else ref - 1

    steps = tuple(Step(s.op, tuple(map(move, s.args))) for s in chain.steps[1:])
    results = tuple(int(move(r)) for r in chain.results)
    return replace(chain, steps=steps, results=results)


def _blocked(v: Values, p: ConvParams, operands: Sequence[int], result: int) -> None:
    """``conv``, ``conv_stem`` or ``depthwise``: the sum, what it is added to, a clamp, a chain."""
    x, w, bias, extras = p.split(operands)
    finish = _finish(p.epilogue)
    window = _two(p.window)
    last, source = (last_block(p.filters),), v.shape(w)
    home, inner = v.home(result), v.interior(result)
    views = [v.over(e, result, inner, lanes=True) for e in extras]
    add = None if finish.add is None else views.pop(finish.add)
    steps = (*window.strides, *window.dilations)
    if p.layout == "stem":
        kernel, read = "conv_stem", four(v.view(x))
        ints = (*steps, *halo_of(window), *last, *home.halo)
    else:
        kernel, read = "conv", v.block(x).view(halo_of(window))
        ints = (*steps, p.groups, *last, last_block(p.channels), *home.halo)
    if p.layout in WINOGRAD:
        kernel = "winograd"
        ints = (WINOGRAD[p.layout], *last, last_block(p.channels), *home.halo)
    if p.layout == "depthwise":
        kernel, ints = "depthwise", (*steps, *last, *home.halo)
    weight = View(v.slot(w).buffer, source, dense_strides(source))
    v.w.call(
        kernel, read, weight, v.slot(bias).view if bias is not None else None, add, *views,
        home.whole, ints=ints, floats=(finish.low, finish.high), chain=finish.chain,
    )  # fmt: skip
    v.blocks[result] = home


def _two(window: Window) -> Window:
    """A window over one axis as one over two."""
    if window.rank == 2:
        return window
    before, after = window.pads
    kernel, strides, dilations = (
        (1, *ints) for ints in (window.kernel, window.strides, window.dilations)
    )
    return Window(kernel, strides, dilations, (0, before, 0, after))


# ---- plain -------------------------------------------------------------------------------


def _panels(v: Values, p: ConvParams, operands: Sequence[int], result: int) -> None:
    """A convolution over one position is a product: ``[N, C] x [C, O]``."""
    x, w, bias, extras = p.split(operands)
    rows = v.shape(result)[0]

    def flat(slot: Slot, columns: int, kind: str = FULL) -> View:
        strides: dict[str, Shape] = {FULL: (columns, 1), ROW: (0, 1)}
        return View(slot.buffer, (rows, columns), strides.get(kind, (0, 0)))

    kinds = p.epilogue.operands[1:] if p.epilogue else ()
    views = []
    for extra, kind in zip(extras, kinds, strict=True):
        batches = kind == ROW and len(v.shape(extra)) == len(v.shape(result))
        whole = batches and v.shape(extra)[0] != 1
        views.append(flat(v.slot(extra), p.filters, FULL if whole else kind))
    v.w.call(
        "gemm", flat(v.slot(x), p.channels), v.slot(w).view,
        v.slot(bias).view if bias is not None else None, *views, flat(v.out(result), p.filters),
        ints=(LAYOUTS.index("panels"), 1), chain=p.epilogue, drivers=DRIVERS,
    )  # fmt: skip


def _plain(v: Values, p: ConvParams, operands: Sequence[int], result: int) -> None:
    """Any convolution, on plain values; rows of its chain are channels, columns the last axis."""
    x, w, bias, extras = p.split(operands)
    y = v.out(result)
    views, kinds = [], [FULL]
    for extra in extras:
        view, kind = _spread(v, extra, y)
        views.append(view)
        kinds.append(kind)
    chain = replace(p.epilogue, operands=tuple(kinds)) if p.epilogue else None
    window = p.window
    axes = (*window.strides, *window.dilations, *window.pads[: window.rank])
    v.w.call(
        "conv_plain", v.slot(x).view, v.slot(w).view,
        v.slot(bias).view if bias is not None else None, *views, y.view,
        ints=(p.groups, *axes), chain=chain,
    )  # fmt: skip


def _spread(v: Values, value: int, y: Slot) -> tuple[View, str]:
    """An epilogue operand seen over a plain result, and how it lies over its last axis."""
    shape, full = v.shape(value), y.shape
    slot = v.slot(value)
    if shape == full:
        return slot.view, FULL
    wide = (*(1,) * (len(full) - len(shape)), *shape)
    pairs = zip(wide, dense_strides(wide), strict=True)
    strides = tuple(0 if d == 1 else s for d, s in pairs)
    return View(slot.buffer, full, strides), COL


# ---- pools -------------------------------------------------------------------------------


def lower_pool(v: Values, p: PoolParams, operands: Sequence[int], result: int) -> None:
    """``pool`` between blocked values, ``pool_all`` to a plain ``[N, C]``."""
    source = v.block(operands[0])
    kind = _POOLS.index(p.kind)
    if p.window is None:
        slot = v.out(result)
        flat = View(slot.buffer, (source.batch, source.channels), (source.channels, 1))
        v.w.call("pool_all", source.view(), flat, ints=(last_block(source.channels), kind))
        return
    window = _two(p.window)
    home = v.home(result)
    ints = (kind, *window.kernel, *window.strides, *window.dilations, *halo_of(window), *home.halo)
    v.w.call("pool", source.view(), home.whole, ints=ints)
    v.blocks[result] = home
