"""Convert normalisations of images with weights per channel, over groups or over channels.

InstanceNormalization, GroupNormalization                        -> FusedChannelNorm
Reshape [N,G,-1] -> InstanceNormalization -> Reshape·γ + β       -> FusedChannelNorm
(x − mean)/√(var + ε)·γ + β with means over axis 1               -> FusedChannelNorm(groups=0)
Transpose -> LayerNormalization -> Transpose                     -> FusedChannelNorm(groups=0)
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.norm import Norm
from tracea_graph.passes.pointwise.decomposed_activations import LAYER_NORMS, RMS_NORMS
from tracea_graph.passes.pointwise.reductions import axes_of
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, Rule, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RULES", "is_over_channels", "why_not_over_channels"]


def _image(m: Match, *vectors: str) -> str | None:
    """Return why x is not a float32 image of constant channel count, or why one of ``vectors`` is
    not a vector over its channels; None if all fit."""
    shape = m.spec("x").shape
    if shape is None or len(shape) < 3 or not isinstance(shape[1], int):
        return "x is not known to be an image with a constant number of channels"
    for name in vectors:
        dims = m.spec(name).shape
        lines = [] if dims is None else [dims, (*dims, 1), (1, *dims)]
        if not any(_lies_over_channels(d, len(shape), shape[1]) for d in lines):
            return f"{name} is not a vector over the channels"
    names = [m.values[n] for n in ("x", *vectors)]
    return (
        None
        if is_f32(m.graph, *names)
        else Reason("not all operands are float32", Code.UNSUPPORTED_DTYPE)
    )


def _lies_over_channels(dims: tuple[Any, ...], rank: int, channels: int) -> bool:
    """Return whether dims are ``[C]``, ``[C, 1, …]`` or ``[1, C, 1, …]`` of the image's rank."""
    return dims == (channels,) or (1,) * (rank - len(dims)) + dims == (
        1, channels, *(1,) * (rank - 2)
    )  # fmt: skip


def _region(rule: str, m: Match, kind: str, epsilon: float, groups: int) -> Region:
    affine = [n for n in ("gamma", "beta") if n in m.values]
    norm = Norm(kind, epsilon, "gamma" in affine, "beta" in affine)
    params = ChannelNormParams(norm, groups, m.spec("x").rank or 0)
    operands = (m.values["x"], *(m.values[n] for n in affine))
    return fused_region(rule, params, operands, m.root.results[:1], m.covered)


def _affine(m: Match) -> tuple[str, ...]:
    return tuple(n for n in ("gamma", "beta") if n in m.values)


# ---- operators -------------------------------------------------------------------------


def _norm_op(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return op.either(
        op.InstanceNormalization(x, gamma, beta, label="norm"),
        op.GroupNormalization(x, gamma, beta, label="norm"),
    )


def _is_vector(m: Match, name: str) -> bool:
    shape, dims = m.spec("x").shape, m.spec(name).shape
    return shape is not None and dims == (shape[1],)


def _op_check(m: Match) -> str | None:
    if (reason := _image(m, "gamma", "beta")) is not None:
        return reason
    if not (_is_vector(m, "gamma") and _is_vector(m, "beta")):
        return "it has one weight per group instead of per channel"
    stash = attribute(m.labels["norm"], "stash_type", 1)
    return None if stash == 1 else "its stash_type is not float32"


def _op(m: Match) -> Region:
    region = m.labels["norm"]
    channels = (m.spec("x").shape or ())[1]
    instance = region.op == "InstanceNormalization"
    groups: Any = channels if instance else attribute(region, "num_groups", 1)
    epsilon: Any = attribute(region, "epsilon", 1e-5)
    return _region("channel-norm-op", m, "layer", float(epsilon), int(groups))


# ---- group norm as exporters write it --------------------------------------------------


def _grouped(op: Any, x: Any, there: Any, ones: Any, zeros: Any, back: Any) -> Any:
    flat = op.Reshape(x, there, label="there")
    return op.Reshape(op.InstanceNormalization(flat, ones, zeros, label="norm"), back)


def _group_norm(
    op: Any, x: Any, there: Any, ones: Any, zeros: Any, back: Any, gamma: Any, beta: Any
) -> Any:
    return op.Add(op.Mul(_grouped(op, x, there, ones, zeros, back), gamma), beta)


def _group_norm_bare(op: Any, x: Any, there: Any, ones: Any, zeros: Any, back: Any) -> Any:
    return _grouped(op, x, there, ones, zeros, back)


def _group_check(m: Match) -> str | None:
    affine = _affine(m)
    if (reason := _image(m, *affine)) is not None:
        return reason
    if any(m.spec(n).shape == ((m.spec("x").shape or ())[1],) for n in affine):
        return "gamma or beta lies along the last axis"
    shape = m.spec("x").shape or ()
    flat = m.graph.spec(m.labels["there"].results[0]).shape
    if flat is None or len(flat) != 3 or flat[0] != shape[0] or not isinstance(flat[1], int):
        return "its input is not known to be reshaped to [N, groups, -1]"
    if shape[1] % flat[1]:  # type: ignore[operator]
        return "the number of groups does not divide the channels"
    if m.graph.spec(m.root.results[0]).shape != shape:
        return "the result does not have the shape of x"
    if not (_filled(m.graph, m.values["ones"], 1.0) and _filled(m.graph, m.values["zeros"], 0.0)):
        return "its InstanceNormalization also has weights per group"
    return None


def _filled(graph: TileGraph, value: str, number: float) -> bool:
    weight = graph.weight(value)
    return weight is not None and bool((weight.array() == number).all())


def _group(m: Match) -> Region:
    flat = m.graph.spec(m.labels["there"].results[0]).shape or ()
    epsilon = float(attribute(m.labels["norm"], "epsilon", 1e-5))  # type: ignore[arg-type]
    return _region("group-norm", m, "layer", epsilon, int(flat[1]))  # type: ignore[arg-type]


# ---- over the channels at each position ------------------------------------------------


def is_over_channels(m: Match) -> bool:
    """Return whether every mean of a match is over the channels alone."""
    means = [r for r in m.covered if r.op == "ReduceMean"]
    axis = 1 - (m.spec("x").rank or 0)
    return all(axes_of(m.graph, r) == (axis,) and attribute(r, "keepdims", 1) == 1 for r in means)


def why_not_over_channels(m: Match) -> str | None:
    """Return why a match of ``LAYER_NORMS`` or ``RMS_NORMS`` is not over channels, or None."""
    affine = _affine(m)
    if (reason := _image(m, *affine)) is not None:
        return reason
    if any(_is_vector(m, n) for n in affine):
        return "gamma or beta lies along the last axis"
    if not is_over_channels(m):
        return "a mean is not over the channels alone"
    if constant_number(m.graph, m.values["epsilon"]) is None:
        return "epsilon is not a constant"
    return None


def _channels(kind: str) -> Any:
    def rewrite(m: Match) -> Region:
        epsilon = constant_number(m.graph, m.values["epsilon"]) or 0.0
        return _region(f"{kind}-norm-over-channels", m, kind, epsilon, 0)

    return rewrite


def _transposed_norm(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    last = op.Transpose(x, label="there")
    return op.Transpose(op.LayerNormalization(last, gamma, beta, label="norm"), label="back")


def _transposed_norm_check(m: Match) -> str | None:
    if (reason := _image(m, "gamma", "beta")) is not None:
        return reason
    rank = m.spec("x").rank or 0
    there = (0, *range(2, rank), 1)
    back = (0, rank - 1, *range(1, rank - 1))
    if attribute(m.labels["there"], "perm", None) != there:
        return "x is not transposed to channels last"
    if attribute(m.labels["back"], "perm", None) != back:
        return "the result is not transposed back to channels first"
    if attribute(m.labels["norm"], "axis", -1) not in (-1, rank - 1):
        return "it normalises more than the channels"
    if not (_is_vector(m, "gamma") and _is_vector(m, "beta")):
        return "gamma or beta is not a vector over the channels"
    if any(v for v in m.labels["norm"].results[1:] if m.graph.uses(v) or m.graph.is_output(v)):
        return "its mean or deviation output is used"
    return None


def _transposed_layer_norm(m: Match) -> Region:
    epsilon = float(attribute(m.labels["norm"], "epsilon", 1e-5))  # type: ignore[arg-type]
    return _region("transposed-layer-norm", m, "layer", epsilon, 0)


CHANNEL_NORM_OP = Rule("channel-norm-op", (_norm_op,), _op, _op_check)
GROUP_NORM = Rule("group-norm", (_group_norm, _group_norm_bare), _group, _group_check)
LAYER_NORM_OVER_CHANNELS = Rule(
    "layer-norm-over-channels", LAYER_NORMS, _channels("layer"), why_not_over_channels
)
RMS_NORM_OVER_CHANNELS = Rule(
    "rms-norm-over-channels", RMS_NORMS, _channels("rms"), why_not_over_channels
)
TRANSPOSED_LAYER_NORM = Rule(
    "transposed-layer-norm", (_transposed_norm,), _transposed_layer_norm, _transposed_norm_check
)

RULES = (
    CHANNEL_NORM_OP,
    GROUP_NORM,
    LAYER_NORM_OVER_CHANNELS,
    RMS_NORM_OVER_CHANNELS,
    TRANSPOSED_LAYER_NORM,
)
"""Rules that match image norms."""
