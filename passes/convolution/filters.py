"""Weights of convolutions: the layout they get, and new weights computed from old ones.

Every new weight is computed when it is asked for; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Array, DType, Extent, Node, Weight
from tracea_graph.ops.body import BodyBuilder, placed
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import (
    BLOCK,
    WINOGRAD,
    blocks,
    pack_filters,
    spell_packed,
    stored_shape,
    unpack_filters,
)  # fmt: skip
from tracea_graph.ops.windows import Window
from tracea_graph.ops.winograd import spell_transform
from tracea_graph.ttg import Region, TileGraph

Floats = npt.NDArray[np.floating[Any]]

__all__ = [
    "Affine", "after_filters", "before_filters", "bias_size", "groups_at_once", "image_of",
    "in_16_bits", "layout_for", "pack_weight", "pad_bias", "side_by_side", "taken", "transformed",
]  # fmt: skip

_STEM = 8
"""Input channels below which a block of 16 would be mostly padding."""
_MOST_GROUPS = 4
"""Of groups taken together: so many times as many products take less than one by one."""


def layout_for(
    shape: tuple[int, ...], groups: int, window: Window, spatial: tuple[Extent, ...], plain: bool
) -> str:
    """The layout of weights ``[O, I, kernel…]``."""
    o, i = shape[:2]
    if plain or window.rank > 2:
        return "plain"
    if groups == 1:
        if window.pointwise and all(d == 1 for d in spatial):
            return "panels"
        return "stem" if i <= _STEM else "blocked"
    if i == 1 and o == groups:
        return "depthwise"
    return "blocked" if i % BLOCK == 0 and o // groups % BLOCK == 0 else "plain"


def groups_at_once(shape: tuple[int, ...], groups: int) -> int:
    """How many neighbouring groups of filters ``[O, I, kernel…]`` fill whole blocks; 1 if that
    takes more than :data:`_MOST_GROUPS`."""
    o, i = shape[0] // groups, shape[1]
    if groups == 1 or i == 1:
        return 1
    count = lcm(BLOCK // gcd(BLOCK, i), BLOCK // gcd(BLOCK, o))
    return count if count <= _MOST_GROUPS and groups % count == 0 else 1


def side_by_side(weight: Weight, groups: int, count: int) -> Weight:
    """Filters of as many groups as one: ``[O, count·I, kernel…]``, zeros where a filter and an
    input belong to different groups."""
    o, i, *kernel = weight.shape

    def load() -> Array:
        stored = np.asarray(weight.load(), np.float32)
        split = stored.reshape(groups // count, count, o // groups, i, *kernel)
        joined = np.zeros((groups // count, count, o // groups, count, i, *kernel), np.float32)
        for group in range(count):
            joined[:, group, :, group] = split[:, group]
        return joined.reshape(o, count * i, *kernel)

    name = f"{weight.name}_by_{count}"
    return Weight(name, weight.dtype, (o, count * i, *kernel), load)


def taken(weight: Weight, taps: Sequence[slice]) -> Weight:
    """Some taps of each filter."""
    kernel = tuple(len(range(*t.indices(k))) for t, k in zip(taps, weight.shape[2:], strict=True))
    where = "_".join(f"{t.start}_{t.stop}" for t in taps)
    index: tuple[Any, ...] = (..., *taps)
    return Weight(
        f"{weight.name}_taps_{where}",
        weight.dtype,
        (*weight.shape[:2], *kernel),
        lambda: np.ascontiguousarray(weight.load()[index]),
    )


def pack_weight(
    weight: Weight, layout: str, opset: int, made: Sequence[Node] | None = None
) -> Weight:
    """The same weights in a layout.

    Given ``made``, they stay as they are, others need them too, or those nodes compute them from
    smaller constants: further nodes pack them at load.
    """
    name, shape = f"{weight.name}_{layout}", stored_shape(layout, weight.shape)
    recipe: tuple[Node, ...] = ()
    if made is not None:
        b = BodyBuilder(1, opset)
        body = b.done(spell_packed(b, b.inputs[0], layout, weight.shape))
        recipe = (*made, *placed(body, [weight.name], name))
    return Weight(
        name, DType.F32, shape,
        lambda: pack_filters(np.asarray(weight.load(), np.float32), layout), recipe,
    )  # fmt: skip


def transformed(weight: Weight, params: ConvParams, layout: str, opset: int) -> Weight:
    """Blocked filters by Winograd's transform.

    They take 1.8 (``winograd2``) or four times the bytes, so the runtime is left to compute them.
    """

    def load() -> Array:
        stored = np.asarray(weight.load(), np.float32)
        return pack_filters(unpack_filters(stored, params.layout, params.shape), layout)

    name = f"{weight.name.removesuffix(f'_{params.layout}')}_{layout}"
    b = BodyBuilder(1, opset)
    m, (o, i) = WINOGRAD[layout], params.shape[:2]
    body = b.done(spell_transform(b, b.inputs[0], m, o, i))
    recipe = placed(body, [weight.name], name)
    return Weight(name, DType.F32, stored_shape(layout, params.shape), load, recipe)


def in_16_bits(weight: Weight, params: ConvParams, layout: str) -> Weight:
    """The same filters in a layout of bf16."""

    def load() -> Array:
        stored = np.asarray(weight.array(), np.float32)
        return pack_filters(unpack_filters(stored, params.layout, params.shape), layout)

    shape = stored_shape(layout, params.shape)
    return Weight(f"{weight.name}_{layout}", DType.BF16, shape, load)


def image_of(graph: TileGraph, region: Region) -> tuple[Extent, ...]:
    """The spatial extents of what a convolution makes; none if they are not known."""
    return (graph.spec(region.results[0]).shape or ())[2:]


def pad_bias(weight: Weight) -> Weight:
    """A bias filled up with zeros to whole blocks."""
    (count,) = weight.shape
    size = BLOCK * blocks(count)

    def load() -> Array:
        return np.pad(np.asarray(weight.load(), np.float32), (0, size - count))

    return Weight(f"{weight.name}_blocks", DType.F32, (size,), load)


@dataclass(frozen=True)
class Affine:
    """``y = scale · x + shift`` per channel, as a batch normalisation is once its figures are
    fixed: ``scale = γ / √(var + ε)``, ``shift = β − mean · scale``, in fp64."""

    gamma: Weight
    beta: Weight
    mean: Weight
    variance: Weight
    epsilon: float

    @property
    def channels(self) -> int:
        return self.gamma.count

    def arrays(self) -> tuple[Floats, Floats]:
        gamma, beta, mean, variance = (
            np.asarray(w.load(), np.float64).reshape(-1)
            for w in (self.gamma, self.beta, self.mean, self.variance)
        )
        scale = gamma / np.sqrt(variance + self.epsilon)
        return scale, beta - mean * scale

    def weights(self, name: str, rank: int) -> tuple[Weight, Weight]:
        """Scale and shift as weights ``[C, 1…]`` that broadcast over ``rank`` spatial axes."""
        shape = (self.channels, *(1,) * rank)

        def part(index: int) -> Callable[[], Array]:
            return lambda: self.arrays()[index].astype(np.float32).reshape(shape)

        names = (f"{name}_scale", f"{name}_shift")
        scale, shift = (Weight(n, DType.F32, shape, part(i)) for i, n in enumerate(names))
        return scale, shift


def after_filters(
    params: ConvParams, weight: Weight, bias: Weight | None, affine: Affine, name: str
) -> tuple[Weight, Weight]:
    """Filters and bias of ``affine(conv(x))``."""
    shape, size = params.shape, bias_size(params)

    def filters() -> Array:
        scale, _ = affine.arrays()
        plain = unpack_filters(weight.load().astype(np.float64), params.layout, shape)
        scaled = plain * scale.reshape(-1, *(1,) * (len(shape) - 1))
        return pack_filters(scaled.astype(np.float32), params.layout)

    def offsets() -> Array:
        scale, shift = affine.arrays()
        old = _offsets(bias, params)
        return np.pad((shift + old * scale).astype(np.float32), (0, size - params.filters))

    return (
        Weight(f"{name}_filters", DType.F32, weight.shape, filters),
        Weight(f"{name}_bias", DType.F32, (size,), offsets),
    )


def before_filters(
    params: ConvParams, weight: Weight, bias: Weight | None, affine: Affine, name: str
) -> tuple[Weight, Weight]:
    """Filters and bias of ``conv(affine(x))``, which is exact without padding only."""
    shape, size = params.shape, bias_size(params)
    per_group = params.filters // params.groups

    def by_filter(values: Floats) -> Floats:
        """``[C]`` as ``[O, I, 1…]``: what each filter's channels are multiplied by."""
        grouped = values.reshape(params.groups, 1, shape[1])
        spread = np.broadcast_to(grouped, (params.groups, per_group, shape[1]))
        return spread.reshape(*shape[:2], *(1,) * (len(shape) - 2))

    def plain() -> Floats:
        return unpack_filters(weight.load().astype(np.float64), params.layout, shape)

    def filters() -> Array:
        scaled = plain() * by_filter(affine.arrays()[0])
        return pack_filters(scaled.astype(np.float32), params.layout)

    def offsets() -> Array:
        shift = (plain() * by_filter(affine.arrays()[1])).reshape(params.filters, -1).sum(1)
        old = _offsets(bias, params)
        return np.pad((shift + old).astype(np.float32), (0, size - params.filters))

    return (
        Weight(f"{name}_filters", DType.F32, weight.shape, filters),
        Weight(f"{name}_bias", DType.F32, (size,), offsets),
    )


def _offsets(bias: Weight | None, params: ConvParams) -> Floats:
    """The bias without its padding; zeros for none."""
    if bias is None:
        return np.zeros(params.filters)
    return bias.load()[: params.filters].astype(np.float64)


def bias_size(params: ConvParams) -> int:
    return BLOCK * blocks(params.filters) if params.in_blocks else params.filters
