"""Pack images of few channels from what an elementwise chain reads, instead of from its result.

The inputs of quantized networks are rounded to bytes, channels last, and then packed.  One launch
does both, and reads the input once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType, Extent, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FULL
from tracea_graph.ops.index_map import dense_strides

__all__ = ["fold_packs"]

_TYPES = (DType.F32, DType.F16, DType.BF16)


def fold_packs(w: GpuProgramWriter) -> None:
    """Let calls that pack an image compute the chain that alone makes it."""
    for pack in [c for c in w.calls if c.op == "pack" and c.chain is None]:
        uses, x = BufferUses(w.calls), pack.views[0]
        maker = uses.only_for(x, pack) if x else None
        made = _joined(maker, pack) if maker else None
        if x is None or maker is None or made is None:
            continue
        places = [next(i for i, c in enumerate(w.calls) if c is one) for one in (maker, pack)]
        read = made.views[0]
        assert read is not None
        changed = uses.writers.get(read.buffer, ())
        if any(c is one for c in w.calls[places[0] : places[1]] for one in changed):
            continue
        w.calls[places[1]] = replace(made, step=pack.step)
        w.drop(maker)
        w.temps[x.buffer.index] = w.temps[x.buffer.index][0], 0


def _joined(maker: Call, pack: Call) -> Call | None:
    """Return the packing of what a chain of one operand reads; None for other calls."""
    chain, named = maker.chain, dict(CALLS.of(pack).named(pack))
    if maker.op != "elementwise" or chain is None or chain.operands != (FULL,):
        return None
    source, made = maker.views
    own: Any = named["x"]
    if source is None or made is None or len(chain.results) > 1:
        return None
    kind, held = chain.operand_types[0], DType.from_short(str(pack.attributes["x_type"]))
    if kind not in _TYPES or chain.result_types != (held,) or own.offset != 0:
        return None
    strides = tuple(_through(d, s, made, source) for d, s in zip(own.dims, own.strides,
                                                                strict=True))  # fmt: skip
    if None in strides:
        return None
    view = View(source.buffer, own.dims, strides, source.offset)  # type: ignore[arg-type]
    attributes = {**pack.attributes, "x_type": kind.short}
    return CALLS.make("pack", pack.dtype, **{**named, "x": view}, **attributes, chain=chain)


def _through(size: Extent, step: Extent, made: View, source: View) -> Extent | None:
    """Return the stride in a chain's operand for one in its dense result; None if there is none.

    Positions along the axis must stay within one axis of the chain.
    """
    if made.offset != 0 or made.strides != dense_strides(made.dims) or not isinstance(step, int):
        return None
    for axis, own in enumerate(made.strides):
        if not isinstance(own, int) or own == 0 or step % own:
            continue
        times, most = step // own, made.dims[axis]
        whole = combine("mul", size, times)
        if whole == most or (isinstance(whole, int) and isinstance(most, int) and whole <= most):
            return combine("mul", source.strides[axis], times)
    return None
