"""Derive filters and biases of convolutions from others, lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.passes.matmul.constant_matrices import is_shared, nodes_making
from tracea_graph.ttg import TileGraph

Floats = npt.NDArray[np.floating[Any]]

__all__ = [
    "ChannelAffine",
    "fold_affine_after",
    "fold_affine_before",
    "must_stay_plain",
    "select_taps",
]


def must_stay_plain(graph: TileGraph, value: str) -> bool:
    """Return whether filters must not be replaced by derived ones.

    This holds if other operators read them and they are too large to store twice, or if the model
    computes them from smaller constants.
    """
    return bool(nodes_making(graph, value)) or is_shared(graph, value, ("Conv", "FusedConv"))


def select_taps(weight: Weight, taps: Sequence[slice]) -> Weight:
    """Return filters that consist of a range of taps along each spatial axis."""
    kernel = tuple(len(range(*t.indices(k))) for t, k in zip(taps, weight.shape[2:], strict=True))
    where = "_".join(f"{t.start}_{t.stop}" for t in taps)
    index: tuple[Any, ...] = (..., *taps)
    return Weight(
        f"{weight.name}_taps_{where}",
        weight.dtype,
        (*weight.shape[:2], *kernel),
        lambda: np.ascontiguousarray(weight.load()[index]),
    )


@dataclass(frozen=True)
class ChannelAffine:
    """An affine map per channel, ``y = scale · x + shift``, equal to a batch normalisation with
    constant statistics: ``scale = γ / √(var + ε)``, ``shift = β − mean · scale``, in fp64."""

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
        """Return scale and shift as weights ``[C, 1…]`` that broadcast over ``rank`` spatial
        axes."""
        shape = (self.channels, *(1,) * rank)

        def part(index: int) -> Callable[[], Array]:
            return lambda: self.arrays()[index].astype(np.float32).reshape(shape)

        names = (f"{name}_scale", f"{name}_shift")
        scale, shift = (Weight(n, DType.F32, shape, part(i)) for i, n in enumerate(names))
        return scale, shift


def fold_affine_after(
    params: ConvParams, weight: Weight, bias: Weight | None, affine: ChannelAffine, name: str
) -> tuple[Weight, Weight]:
    """Return filters and bias of ``affine(conv(x))``."""
    shape = params.shape

    def filters() -> Array:
        scale, _ = affine.arrays()
        scaled = weight.load().astype(np.float64) * scale.reshape(-1, *(1,) * (len(shape) - 1))
        return np.asarray(scaled, np.float32)

    def offsets() -> Array:
        scale, shift = affine.arrays()
        return (shift + _offsets(bias, params) * scale).astype(np.float32)

    return (
        Weight(f"{name}_filters", DType.F32, weight.shape, filters),
        Weight(f"{name}_bias", DType.F32, (params.filters,), offsets),
    )


def fold_affine_before(
    params: ConvParams, weight: Weight, bias: Weight | None, affine: ChannelAffine, name: str
) -> tuple[Weight, Weight]:
    """Return filters and bias of ``conv(affine(x))``; exact only without padding."""
    shape = params.shape
    per_group = params.filters // params.groups

    def by_filter(values: Floats) -> Floats:
        """Return ``[C]`` as factors ``[O, I, 1…]`` of each filter's channels."""
        grouped = values.reshape(params.groups, 1, shape[1])
        spread = np.broadcast_to(grouped, (params.groups, per_group, shape[1]))
        return spread.reshape(*shape[:2], *(1,) * (len(shape) - 2))

    def plain() -> Floats:
        return np.asarray(weight.load(), np.float64)

    def filters() -> Array:
        scaled: Floats = plain() * by_filter(affine.arrays()[0])
        return np.asarray(scaled, np.float32)

    def offsets() -> Array:
        shift = (plain() * by_filter(affine.arrays()[1])).reshape(params.filters, -1).sum(1)
        return np.asarray(shift + _offsets(bias, params), np.float32)

    return (
        Weight(f"{name}_filters", DType.F32, weight.shape, filters),
        Weight(f"{name}_bias", DType.F32, (params.filters,), offsets),
    )


def _offsets(bias: Weight | None, params: ConvParams) -> Floats:
    """Return the bias, or zeros if there is none."""
    return np.zeros(params.filters) if bias is None else bias.load().astype(np.float64)
