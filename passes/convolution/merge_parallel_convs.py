"""Merge parallel convolutions of one input whose results are added.

FusedConv(x) + FusedConv(x) + BatchNormalization(x) …    ->    FusedConv(x)

Convolutions are linear in their filters: filters of equal stride add up, aligned in the largest
window, and a batch normalisation is a diagonal filter with one tap.  Every tap of the sum belongs
to the largest kernel, so the number of multiplications does not grow.
Source: Ding et al., "RepVGG: Making VGG-style ConvNets Great Again" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.passes.convolution.batch_norm import batch_norm_affine
from tracea_graph.passes.convolution.derived_filters import ChannelAffine, must_stay_plain
from tracea_graph.passes.region_helpers import fused_region, only_read_by
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MergeParallelConvs"]

Floats = npt.NDArray[np.floating[Any]]
_SUMS = ("Add", "Sum")
_MOST_TERMS = 16
"""Terms and nested sums of a sum that is looked at; long rows of sums would take cubic time."""


@dataclass(frozen=True)
class _Branch:
    """One summand: a convolution without epilogue and its weights, or only ``affine``."""

    region: Region
    filters: Weight | None = None
    bias: Weight | None = None
    affine: ChannelAffine | None = None


class MergeParallelConvs:
    """Merge the terms of a sum, if all of them are convolutions or normalisations of one value."""

    name = "merge-parallel-convs"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        """Propose to merge the terms of this sum, or of a larger sum that contains it.

        The larger sum is tried because the term with the widest window may be outside this one.
        """
        for _ in range(_MOST_TERMS):
            if region.op not in _SUMS:
                break
            found = self._folded(graph, region)
            if isinstance(found, Proposal):
                yield found
                return
            yield Miss(self.name, region.id, found)
            readers = graph.readers(region)
            if len(readers) != 1 or not only_read_by(graph, region.results[0], readers[0]):
                break
            region = readers[0]

    def _folded(self, graph: TileGraph, region: Region) -> Proposal | str:
        sums, terms = [region], list[Region]()
        for term in islice(_terms(graph, region), _MOST_TERMS + 1):
            (sums if term.op in _SUMS else terms).append(term)
        convs = [t for t in terms if isinstance(t.params, ConvParams)]
        every = all(t in convs or t.op == "BatchNormalization" for t in terms)
        every = every and len(sums) + len(terms) - 1 <= _MOST_TERMS
        if not 2 <= len(terms) == len(set(terms)) or not every or not convs:
            return unsuited_reason("its terms are not all convolutions or batch norms")
        return _sum(graph, sums, terms, max(convs, key=lambda c: math.prod(c.params.shape)))


def _terms(graph: TileGraph, region: Region) -> Iterator[Region]:
    """Return the producers of a sum's operands, through nested sums without other readers."""
    for value in region.operands:
        made = graph.producer(value)
        if made is None or not only_read_by(graph, value, region):
            continue
        yield made
        if made.op in _SUMS:
            yield from _terms(graph, made)


def _sum(
    graph: TileGraph, sums: Sequence[Region], terms: Sequence[Region], widest: Region
) -> Proposal | str:
    params: ConvParams = widest.params
    x, result = widest.operands[0], sums[0].results[0]
    if sum(len(s.operands) for s in sums) != len(sums) + len(terms) - 1:
        return "the sum has terms that are not convolutions of this input"
    branches, places = [], []
    for term in terms:
        branch, place = _branch(graph, term), _place(term.params, params)
        if term.operands[0] != x:
            return "its branches read different values"
        if isinstance(branch, str) or isinstance(place, str):
            return branch if isinstance(branch, str) else str(place)
        branches.append(branch)
        places.append(place)
    if any(graph.spec(t.results[0]) != graph.spec(result) for t in terms):
        return "the results of its branches differ in shape"
    filters = Weight(
        f"{result}_filters", DType.F32, graph.weights[widest.operands[1]].shape,
        lambda: _filters(params, branches, places),
    )  # fmt: skip
    offsets = Weight(
        f"{result}_bias", DType.F32, (params.filters,), lambda: _offsets(params, branches)
    )
    covered = (*terms, *sums)
    new = fused_region(
        MergeParallelConvs.name, replace(params, bias=True), (x, filters.name, offsets.name),
        (result,), covered,
    )  # fmt: skip
    weights = {w.name: w for w in (filters, offsets)}
    return Proposal(MergeParallelConvs.name, covered, (new,), weights=weights)


def _branch(graph: TileGraph, term: Region) -> _Branch | str:
    if not isinstance(term.params, ConvParams):
        affine = batch_norm_affine(graph, term)
        return affine if isinstance(affine, str) else _Branch(term, affine=affine)
    _, w, bias, _ = term.params.split(term.operands)
    weight, offsets = graph.weight(w), graph.weight(bias) if bias else None
    if term.params.epilogue is not None or weight is None or (bias and offsets is None):
        return "a branch has an epilogue, or its bias is not constant"
    if weight.computed_by or must_stay_plain(graph, w):
        return f"{w!r} must stay: it is computed, or others read it"
    return _Branch(term, weight, offsets)


def _place(params: ConvParams | None, widest: ConvParams) -> list[list[int]] | str:
    """Return, per axis, the taps of the widest window that read what a branch's taps read."""
    window = params.window if params else ConvWindow.unit((1,) * widest.window.rank)
    channels = widest.filters if params is None else params.channels
    groups = widest.groups if params is None else params.groups
    wide = widest.window
    if (channels, groups) != (widest.channels, widest.groups) or window.strides != wide.strides:
        return "its branches differ in channels, groups or strides"
    places = []
    for axis, (pads, large) in enumerate(zip(window.pairs, wide.pairs, strict=True)):
        step, count = wide.dilations[axis], wide.kernel[axis]
        starts = [
            t * window.dilations[axis] - pads[0] + large[0] for t in range(window.kernel[axis])
        ]
        if any(at % step or not 0 <= at // step < count for at in starts):
            return "a branch reads positions that the widest window does not"
        places.append([at // step for at in starts])
    return places


def _filters(
    params: ConvParams, branches: Sequence[_Branch], places: Sequence[list[list[int]]]
) -> Array:
    """Sum the filters in fp64 and round each number once."""
    o, i, *_ = params.shape
    total: Floats = np.zeros(params.shape)
    every = np.arange(o)
    for branch, place in zip(branches, places, strict=True):
        if branch.affine is not None:
            scale, _ = branch.affine.arrays()
            at: tuple[Any, ...] = (every, every % i, *(p[0] for p in place))
            total[at] += scale
        else:
            assert branch.filters is not None
            stored = branch.filters.load().astype(np.float64)
            total[np.ix_(range(o), range(i), *place)] += stored
    return total.astype(np.float32)


def _offsets(params: ConvParams, branches: Sequence[_Branch]) -> Array:
    total: Floats = np.zeros(params.filters)
    for branch in branches:
        if branch.affine is not None:
            total += branch.affine.arrays()[1]
        elif branch.bias is not None:
            total += branch.bias.load().astype(np.float64)
    return total.astype(np.float32)
