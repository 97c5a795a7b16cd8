"""The inputs one optimization measures with: synthesised, or the caller's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tracea_graph.check.bindings import Binding, bindings
from tracea_graph.check.feeds import from_file, synthesize
from tracea_graph.config import Options
from tracea_graph.onnx_io import Model

__all__ = ["Inputs", "gather_inputs"]

Feed = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Inputs:
    """Feeds by label: those to time and those to verify with; ``timed`` are their bindings."""

    timed: tuple[Binding, ...]
    timing: Mapping[str, Feed] = field(repr=False)
    verification: Mapping[str, Feed] = field(repr=False)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.timing)


def gather_inputs(model: Model, options: Options) -> Inputs:
    """Feeds for a model.  Raises UsageError for data or shapes that do not fit it."""
    graph, names = model.graph, model.inputs
    timed, verified = bindings(graph, options.shapes, names)
    if options.data is not None:
        sets = from_file(options.data, graph, names)
        feeds = {f"data[{i}]": feed for i, feed in enumerate(sets)}
        return Inputs(timed, feeds, feeds)
    return Inputs(
        timed,
        {b.label: synthesize(graph, b, options.seed, names) for b in timed},
        {b.label: synthesize(graph, b, options.seed, names) for b in verified},
    )
