"""The error of a built result by one metric; what the original gives is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tracea_graph.check.worker import Worker
from tracea_graph.compress import Metric
from tracea_graph.pipeline.candidates import Built

__all__ = ["Gauge"]

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class Gauge:
    """Compares results with the model at ``original``."""

    original: Path
    metric: Metric
    threads: int
    _wanted: dict[str, Arrays] = field(default_factory=dict)

    def error(self, built: Built, feeds: Mapping[str, Arrays]) -> float:
        """The largest error of a result over some inputs by name."""
        with Worker(limit=600.0) as worker:
            missing = feeds.keys() - self._wanted.keys()
            if missing:
                worker.open("original", self.original, threads=self.threads)
                self._wanted |= {k: worker.run("original", feeds[k]) for k in sorted(missing)}
                worker.close("original")
            worker.open("result", built.model, built.library, threads=self.threads)
            return max(
                self.metric(worker.run("result", feed), self._wanted[label])
                for label, feed in feeds.items()
            )
