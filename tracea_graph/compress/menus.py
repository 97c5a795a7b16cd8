"""What could become of each layer, and the matrices that would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.compress.budget import Choice
from tracea_graph.compress.channels import ChannelMenu
from tracea_graph.compress.layers import Layer
from tracea_graph.compress.lowrank import LowRankMenu
from tracea_graph.compress.prune import PruneMenu
from tracea_graph.config import Prune
from tracea_graph.ops.weights import ALIGNED
from tracea_graph.passes.sparse.zeros import zero_map

__all__ = ["Menus", "middling"]

Floats = npt.NDArray[np.floating[Any]]
_MOST_STORED = 0.9
"""Share of runs above which leaving out the others gains nothing."""


@dataclass
class Menus:
    """Menus of the techniques asked for: factors up to a relative error of the layer's own output,
    zeros as a pattern says."""

    low_rank: float | None
    prune: Prune | None
    _ranks: dict[str, LowRankMenu] = field(default_factory=dict)
    _zeros: dict[str, PruneMenu] = field(default_factory=dict)
    _channels: dict[str, ChannelMenu] = field(default_factory=dict)

    def offered(self, layer: Layer, gram: Floats | None, makes: bool) -> list[Choice]:
        """What could become of a layer; what that does to the model's outputs is not known yet.

        ``gram`` is the Gram matrix of what is seen of the layer; None where there is no data.
        Where channels may go, the layer that ``makes`` them and the one that reads them have no
        factors: with MiniLM-L6's trained weights (``models.trained``) a sweep got 1.10 and 1.39
        times the dense bf16 speed out of channels within 1 % and 5 % of the embedding, and 1.06
        and 1.22 times out of factors.
        """
        matrix, found = layer.matrix(), list[Choice]()
        if self.prune is not None and self.prune.channels:
            if layer.maker:
                return self._fewer_channels(layer, matrix, gram)
            if makes:
                return []
        if self.low_rank is not None:
            menu = LowRankMenu.of(matrix, gram, layer.written, layer.even)
            self._ranks[layer.name] = menu
            for rank in menu.ranks:
                left = rank * (layer.k + layer.n) / (layer.k * layer.n)
                if (error := menu.error(rank)) <= self.low_rank:
                    saved = layer.saved_us(rank)
                    found.append(_choice(layer, "low rank", rank, saved, left, error))
        if self.prune is not None and not self.prune.channels and not layer.written:
            pruning = self._zeros[layer.name] = PruneMenu(matrix, self.prune, gram)
            for share in pruning.shares():
                left = stored_share(pruning.pruned(share))
                if left <= _MOST_STORED:
                    saved, error = layer.us * (1 - left), pruning.error(share)
                    found.append(_choice(layer, "zeros", share, saved, left, error))
        return found

    def _fewer_channels(self, layer: Layer, matrix: Floats, gram: Floats | None) -> list[Choice]:
        assert self.prune is not None
        menu = self._channels[layer.name] = ChannelMenu.of(
            matrix, gram, self.prune.share, layer.group
        )
        found = []
        for gone, error in menu.errors.items():
            left = 1 - gone / layer.k
            saved = (layer.us + layer.maker_us) * (1 - left)
            found.append(_choice(layer, "channels", gone, saved, left, error))
        return found

    def other(self, layer: Layer, choice: Choice) -> tuple[Floats, ...]:
        """The matrices a choice puts in the place of a layer's: one, or two factors."""
        if choice.technique == "channels":
            return (self._channels[layer.name].pruned(int(choice.size)),)
        if choice.technique == "zeros":
            return (self._zeros[layer.name].pruned(choice.size),)
        return self._ranks[layer.name].factors(layer.matrix(), int(choice.size))

    def delta(self, layer: Layer, choice: Choice) -> Floats:
        """What a choice adds to a layer's matrix."""
        other = self.other(layer, choice)
        whole = other[0] if len(other) == 1 else other[0].astype(np.float64) @ other[1]
        return whole - layer.matrix()

    def error_on(self, layer: Layer, choice: Choice, gram: Floats) -> float:
        """The error of the layer's own output on other data, by the Gram matrix of what is seen
        of it there."""
        if layer.written:
            return self._ranks[layer.name].error_of(int(choice.size), gram)
        delta, matrix = self.delta(layer, choice), layer.matrix()
        energy = float(np.sum(matrix * (gram @ matrix)))
        return float(np.sqrt(np.sum(delta * (gram @ delta)) / energy)) if energy else 0.0

    def why_nothing(self) -> str:
        """Why there is nothing on offer for any layer."""
        if self.low_rank is None and self.prune is not None and self.prune.channels:
            return "no product alone reads what another one makes: no channels could go"
        if self.low_rank is None:
            return (
                f"the zeros of --prune do not fill runs of {ALIGNED} columns: no processor skips "
                "others (2:4 is for GPUs), so they would save nothing; block:16x4:0.7 does"
            )
        errors = [m.error(max(m.ranks)) for m in self._ranks.values() if m.ranks]
        if not errors:
            return "no layer is large enough for two factors"
        return (
            f"no layer's own error keeps within --low-rank {self.low_rank:g}: "
            f"the least is {min(errors):.2g}"
        )


def stored_share(matrix: Floats) -> float:
    """The share of a matrix ``[k, n]`` in runs of 16 columns that are not all zero."""
    return 1.0 - float(zero_map(matrix).mean())


def middling(choices: Sequence[Choice]) -> Choice:
    """The choice of middling error."""
    return sorted(choices, key=lambda c: c.layer_error)[len(choices) // 2]


def _choice(
    layer: Layer, technique: str, size: float, saved: float, left: float, error: float
) -> Choice:
    spared = 4.0 * layer.k * layer.n * (1 - left)
    return Choice(layer.name, technique, size, saved, error, error, left, spared)
