"""List the options to compress each layer, and build the matrices they lead to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.compress.channel_pruning import ChannelPruningErrors
from tracea_graph.compress.compressible_layers import Layer
from tracea_graph.compress.error_budget import LayerOption
from tracea_graph.compress.low_rank_factors import LowRankOptions
from tracea_graph.compress.weight_pruning import PruneOptions
from tracea_graph.config import PruneSpec
from tracea_graph.ops.weight_layouts import ALIGNED
from tracea_graph.passes.sparse.sampled_zero_scan import zero_map

__all__ = ["LayerOptions", "option_of_median_error"]

Floats = npt.NDArray[np.floating[Any]]
_MOST_STORED = 0.9
"""Share of non-zero runs above which skipping the others gains nothing."""
_GROUP, _GONE = 4, 2
"""Number of neighbours of 2:4 sparsity, and of zeros among them."""


@dataclass
class LayerOptions:
    """Lists the ways to compress a layer.

    * ``low_rank``: replace matrices by low-rank factors if the relative error of the layer's
      output is at most this; None: do not.
    * ``prune``: the pattern of zeros to prune to; None: do not prune.
    * ``two_of_four``: the share of its time that a layer with two zeros of every four neighbours
      along k takes; 1 if kernels do not skip them.
    """

    low_rank: float | None
    prune: PruneSpec | None
    two_of_four: float = 1.0
    _ranks: dict[str, LowRankOptions] = field(default_factory=dict)
    _zeros: dict[str, PruneOptions] = field(default_factory=dict)
    _channels: dict[str, ChannelPruningErrors] = field(default_factory=dict)

    def options_for(
        self, layer: Layer, gram: Floats | None, removable_channels: bool
    ) -> list[LayerOption]:
        """Return the ways to compress a layer, without their effect on the model's outputs.

        ``gram`` is the Gram matrix of the layer's observed values; None without data.  If channels
        are to be pruned, layers that compute or read ``removable_channels`` get no low-rank
        options: removing channels saves more at equal error (models/RESULTS.md).
        """
        matrix, found = layer.matrix(), list[LayerOption]()
        if self.prune is not None and self.prune.channels:
            if layer.producer:
                return self._fewer_channels(layer, matrix, gram)
            if removable_channels:
                return []
        if self.low_rank is not None:
            options = LowRankOptions.of(matrix, gram, layer.written, layer.even)
            self._ranks[layer.name] = options
            for rank in options.ranks:
                left = rank * (layer.k + layer.n) / (layer.k * layer.n)
                if (error := options.error(rank)) <= self.low_rank:
                    saved = layer.saved_us(rank)
                    found.append(_option(layer, "low rank", rank, saved, left, error))
        if self.prune is not None and not self.prune.channels and not layer.written:
            pruning = self._zeros[layer.name] = PruneOptions(matrix, self.prune, gram)
            for share in pruning.shares():
                left = nonzero_run_share(pruning.pruned(share))
                if self.prune.group == _GROUP and share * _GROUP >= _GONE and not layer.k % _GROUP:
                    left = min(left, self.two_of_four)
                if left <= _MOST_STORED:
                    saved, error = layer.us * (1 - left), pruning.error(share)
                    found.append(_option(layer, "zeros", share, saved, left, error))
        return found

    def _fewer_channels(
        self, layer: Layer, matrix: Floats, gram: Floats | None
    ) -> list[LayerOption]:
        assert self.prune is not None
        options = self._channels[layer.name] = ChannelPruningErrors.of(
            matrix, gram, self.prune.share, layer.group
        )
        found = []
        for gone, error in options.errors.items():
            left = 1 - gone / layer.k
            saved = (layer.us + layer.producer_us) * (1 - left)
            found.append(_option(layer, "channels", gone, saved, left, error))
        return found

    def replacement(self, layer: Layer, option: LayerOption) -> tuple[Floats, ...]:
        """Return what replaces a layer's matrix: one matrix, or two factors."""
        if option.technique == "channels":
            return (self._channels[layer.name].pruned(int(option.size)),)
        if option.technique == "zeros":
            return (self._zeros[layer.name].pruned(option.size),)
        return self._ranks[layer.name].factors(layer.matrix(), int(option.size))

    def perturbation(self, layer: Layer, option: LayerOption) -> Floats:
        """Return the difference that an option makes to a layer's matrix."""
        replacement = self.replacement(layer, option)
        whole = (
            replacement[0]
            if len(replacement) == 1
            else replacement[0].astype(np.float64) @ replacement[1]
        )
        return whole - layer.matrix()

    def error_on(self, layer: Layer, option: LayerOption, gram: Floats) -> float:
        """Return the relative error of a layer's output under an option, on other data.

        ``gram`` is the Gram matrix of the layer's observed values on that data.
        """
        if layer.written:
            return self._ranks[layer.name].error_of(int(option.size), gram)
        delta, matrix = self.perturbation(layer, option), layer.matrix()
        energy = float(np.sum(matrix * (gram @ matrix)))
        return float(np.sqrt(np.sum(delta * (gram @ delta)) / energy)) if energy else 0.0

    def why_nothing(self) -> str:
        """Return why no layer has an option."""
        if self.low_rank is None and self.prune is not None and self.prune.channels:
            return "no matmul alone reads the result of another one: no channels can be removed"
        if self.low_rank is None:
            return (
                f"--prune saves no time: kernels skip zeros only in runs of {ALIGNED} columns "
                "(2:4 saves some on Hopper, in 16 bits); use block:16x4:0.7"
            )
        errors = [m.error(max(m.ranks)) for m in self._ranks.values() if m.ranks]
        if not errors:
            return "no layer is large enough to gain from two factors"
        return (
            f"every layer's own error exceeds --low-rank {self.low_rank:g}: "
            f"the least is {min(errors):.2g}"
        )


def nonzero_run_share(matrix: Floats) -> float:
    """Return the share of elements of a matrix ``[k, n]`` that must be stored.

    Runs of 16 columns in a row are stored unless all their elements are zero.
    """
    return 1.0 - float(zero_map(matrix).mean())


def option_of_median_error(options: Sequence[LayerOption]) -> LayerOption:
    """Return the option whose layer error is the median."""
    return sorted(options, key=lambda c: c.layer_error)[len(options) // 2]


def _option(
    layer: Layer, technique: str, size: float, saved: float, left: float, error: float
) -> LayerOption:
    spared = 4.0 * layer.k * layer.n * (1 - left)
    return LayerOption(layer.name, technique, size, saved, error, error, left, spared)
