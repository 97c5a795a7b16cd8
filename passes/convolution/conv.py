"""Convert convolutions with constant filters, and fuse padding and elementwise ops into them.

Conv(x, W, b)                              -> FusedConv
FusedConv(Pad(x))                          -> FusedConv(x) with more padding
elementwise(FusedConv(x), a, b …)          -> FusedConv(x, …, epilogue)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracea_graph.ir import Attr, TensorSpec, Weight
from tracea_graph.ops.chain import FULL, ROW, SCALAR
from tracea_graph.ops.conv import ConvParams
from tracea_graph.passes.convolution.derived_filters import must_stay_plain, select_taps
from tracea_graph.passes.convolution.window_attributes import live_taps, read_window
from tracea_graph.passes.pointwise.bound_expressions import IDENTITY, BoundChain, inline_producer
from tracea_graph.passes.pointwise.read_elementwise import fuse_into_producer
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    only_read_by,
    operand_producer,
    same_shape,
)
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "CONV",
    "CONV_PAD",
    "ConvEpilogue",
    "conv_producer",
    "padded_attributes",
    "zero_padding",
]


def _conv(op: Any, x: Any) -> Any:
    return op.Conv(x, ...)


def _convert(m: Match) -> Rewrite | str:
    """Convert a convolution with constant filters."""
    graph, region = m.graph, m.root
    x, w, *rest = region.operands
    weight, shape = graph.weight(w), graph.spec(x).shape
    bias = rest[0] if rest else ""
    if weight is None:
        return Reason(f"the filters {w!r} are not constant", Code.NOT_CONSTANT)
    if shape is None or len(shape) != len(weight.shape):
        return "the rank of its input is not known"
    if not is_f32(graph, x, w, *([bias] if bias else [])):
        return Reason("the operands are not float32", Code.UNSUPPORTED_DTYPE)
    if weight.count == 0 or shape[1] == 0 or len(shape) < 3:
        return "it has no channels, filters or spatial axes"
    window = read_window(region, weight.shape[2:], shape[2:])
    if isinstance(window, str):
        return window
    groups = int(str(attribute(region, "group", 1)))
    channels = weight.shape[1] * groups
    if shape[1] not in (channels,):
        return "the number of input channels is not known"
    weights: dict[str, Weight] = {}
    live, taps = live_taps(window, shape[2:])
    if live != window and not must_stay_plain(graph, w):
        window, weight = live, select_taps(weight, taps)
        weights[weight.name] = weight
    params = ConvParams(channels, weight.shape[0], window, groups, bias=bool(bias))
    w = weight.name
    operands = (x, w, *([bias] if bias else []))
    new = fused_region("conv", params, operands, region.results, [region])
    return Rewrite((new,), weights=weights, step=True)


def conv_producer(graph: TileGraph, value: str) -> Region | None:
    return operand_producer(graph, value, "FusedConv")


def _behind_pad(op: Any, x: Any) -> Any:
    return op.FusedConv(op.Pad(x, ..., label="pad"), ...)


def _pad_check(m: Match) -> str | None:
    pads = zero_padding(m.graph, m.labels["pad"])
    return pads if isinstance(pads, str) else None


def _pad(m: Match) -> Region:
    """Turn zero padding before a convolution into its own padding."""
    pad, pads = m.labels["pad"], zero_padding(m.graph, m.labels["pad"])
    assert not isinstance(pads, str)
    window = m.root.params.window
    total = tuple(a + b for a, b in zip(window.pads, pads, strict=True))
    params = dataclasses.replace(m.root.params, window=dataclasses.replace(window, pads=total))
    operands = (m.values["x"], *m.root.operands[1:])
    return fused_region("conv-pad", params, operands, m.root.results, (pad, m.root))


def zero_padding(graph: TileGraph, pad: Region) -> tuple[int, ...] | str:
    """Return the numbers of zeros that a Pad adds at both ends of each spatial axis, or why it
    is not such a Pad."""
    if attribute(pad, "mode", "constant") not in ("constant", b"constant"):
        return "the padding repeats or mirrors elements instead of adding zeros"
    if len(pad.operands) > 3 and pad.operands[3]:
        return "the Pad has an operand of axes"
    given = attribute(pad, "pads", None)
    if given is None:
        weight = graph.weight(pad.operands[1]) if len(pad.operands) > 1 else None
        if weight is None:
            return Reason("the padding is not constant", Code.NOT_CONSTANT)
        given = tuple(int(v) for v in weight.array().reshape(-1))
    value: object = attribute(pad, "value", 0.0)
    if len(pad.operands) > 2 and pad.operands[2]:
        value = constant_number(graph, pad.operands[2])
    if value != 0.0:
        return "the padding is not zero"
    pads = tuple(int(v) for v in given) if isinstance(given, tuple) else ()
    rank = len(pads) // 2
    if rank < 3:
        return "the padding is not over spatial axes"
    if any((*pads[:2], *pads[rank : rank + 2])) or min(pads) < 0:
        return "batch or channels are padded, or an amount is negative"
    return (*pads[2:rank], *pads[rank + 2 :])


def padded_attributes(conv: Region, zeros: Sequence[int]) -> Mapping[str, Attr] | None:
    """Return a Conv's attributes with ``zeros`` added to its padding; None if its own padding
    depends on its input size (``auto_pad``)."""
    attrs, kind = conv.node.attrs, attribute(conv, "auto_pad", "NOTSET")
    own = attrs.get("pads") if kind == "NOTSET" else None
    pads = own if isinstance(own, tuple) and own else (0,) * len(zeros)
    if kind not in ("NOTSET", "VALID") or len(pads) != len(zeros):
        return None
    total = tuple(int(str(a)) + b for a, b in zip(pads, zeros, strict=True))
    return {**attrs, "auto_pad": "NOTSET", "pads": total}


CONV = Rule("conv", (_conv,), _convert)
CONV_PAD = Rule("conv-pad", (_behind_pad,), _pad, _pad_check)


# ---- epilogues ---------------------------------------------------------------------------


class ConvEpilogue:
    """Fuse elementwise ops on a convolution's result, while its tile is in registers or L1."""

    name = "conv-epilogue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return fuse_into_producer(graph, region, conv_producer, self._fuse)

    def _fuse(
        self, graph: TileGraph, region: Region, bound_chain: BoundChain, value: str, conv: Region
    ) -> Proposal | Miss:
        result = graph.spec(region.results[0])
        if not is_f32(graph, region.results[0], *bound_chain[1]):
            return Miss(
                self.name,
                region.id,
                Reason("its operands and result are not all float32", Code.UNSUPPORTED_DTYPE),
            )
        if not only_read_by(graph, value, region):
            return Miss(
                self.name,
                region.id,
                Reason(f"the convolution {value!r} has other readers", Code.OTHER_READERS),
            )
        if not same_shape(graph.spec(value), result):
            return Miss(self.name, region.id, f"the convolution's {value!r} is broadcast")
        x, w, bias, epilogue_inputs = conv.params.split(conv.operands)
        joined = inline_producer(
            bound_chain, value, (conv.params.epilogue or IDENTITY, (value, *epilogue_inputs))
        )
        if joined is None:
            return Miss(
                self.name,
                region.id,
                Reason("the epilogue would have too many operands", Code.TOO_MANY_OPERANDS),
            )
        chain, names = joined
        kinds = [channel_kind(graph.spec(n), result) for n in names[1:]]
        for name, kind in zip(names[1:], kinds, strict=True):
            if kind is None:
                spec = graph.spec(name)
                why = f"operand {spec} is neither a scalar, nor one value per channel, nor"
                return Miss(self.name, region.id, f"{why} of the output's shape")
        kept = tuple(k for k in kinds if k is not None)
        chain = dataclasses.replace(chain, operands=(FULL, *kept))
        params = dataclasses.replace(conv.params, epilogue=chain)
        behind = conv.operands[2 + conv.params.bias + conv.params.epilogue_inputs :]
        operands = (x, w, *([bias] if bias else []), *names[1:], *behind)
        new = fused_region(self.name, params, operands, region.results, (conv, region))
        return Proposal(self.name, (conv, region), (new,))


def channel_kind(spec: TensorSpec, result: TensorSpec) -> str | None:
    """Return how an operand broadcasts over ``[N, C, spatial…]``: "full", "channel" or "scalar";
    None for anything else."""
    shape, full = spec.shape, result.shape
    if shape is None or full is None or len(shape) > len(full):
        return None
    if shape == full:
        return FULL
    if all(d == 1 for d in shape):
        return SCALAR
    wide = (*(1,) * (len(full) - len(shape)), *shape)
    return ROW if wide[0] in (1, full[0]) and wide[1] == full[1] and set(wide[2:]) == {1} else None
