"""Baseline runtimes other than ONNX Runtime, and timing of many models in one process."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tracea_graph.check.timing_statistics import busy_seconds
from tracea_graph.check.worker_process import Array, Worker
from tracea_graph.errors import UsageError

__all__ = ["BASELINES", "Baseline", "BaselineWorker", "RoundTimes", "baselines_named"]


@dataclass(frozen=True)
class Baseline:
    """A runtime to compare with; ``package`` is the package it needs.

    ``precision`` is the precision it must use: by default OpenVINO chooses bf16 where it can.
    """

    name: str
    package: str
    precision: str

    @property
    def version(self) -> str:
        """The installed version of the package; empty if it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""


BASELINES = (
    Baseline("openvino-f32", "openvino", "f32"),
    Baseline("openvino-bf16", "openvino", "bf16"),
)


def baselines_named(names: Sequence[str] | None) -> tuple[Baseline, ...]:
    """Return the named baselines, or all installed ones.

    Raises UsageError for a baseline that is unknown or not installed.
    """
    if names is None:
        return tuple(baseline for baseline in BASELINES if baseline.version)
    known = {baseline.name: baseline for baseline in BASELINES}
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no baseline {name!r}; the baselines are ort, {', '.join(known)}"
            )
        if not known[name].version:
            raise UsageError(
                f"{name} needs {known[name].package}: pip install tracea-graph[baselines]"
            )
    return tuple(known[name] for name in dict.fromkeys(names))


@dataclass(frozen=True)
class RoundTimes:
    """Milliseconds per run of each model; entry i of every model belongs to round i.

    ``others`` is the share of one core that other processes used during the measurement.
    """

    ms: tuple[tuple[float, ...], ...]
    others: float


class BaselineWorker(Worker):
    """A worker that can also compile and run models in the runtimes to compare with."""

    script: ClassVar[Path] = Path(__file__).with_name("baseline_worker_main.py")

    def __enter__(self) -> Self:
        return self

    def open_baseline(
        self,
        name: str,
        baseline: Baseline,
        model: Path,
        feeds: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        threads: int = 1,
        limit: float | None = None,
    ) -> str:
        """Compile ``model`` for the shapes of ``feeds``; return the precision it runs in.

        ``outputs`` are the model's outputs in order.  Raises RejectedByRuntime with the runtime's
        message.
        """
        found = self._ask(
            "open_baseline",
            f"open {model.name} in {baseline.name}",
            limit,
            name=name,
            model=str(model.resolve()),
            shapes={key: list(array.shape) for key, array in feeds.items()},
            outputs=list(outputs),
            precision=baseline.precision,
            threads=threads,
        )
        return str(found["precision"])

    def time_rounds(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        *,
        pairs: int = 50,
        warmup: int = 3,
        seconds: float = 20.0,
    ) -> RoundTimes:
        """Run the sessions by turns, reversing their order every round; stop after ``seconds``."""
        busy, own = busy_seconds(), time.process_time()
        found = self._ask(
            "compare", f"time {', '.join(names)}", seconds + self._limit, feeds,
            sessions=list(names), pairs=pairs, warmup=warmup, seconds=seconds,
        )  # fmt: skip
        used = busy_seconds() - busy - (time.process_time() - own) - found["cpu"]
        return RoundTimes(tuple(map(tuple, found["ms"])), max(0.0, used / found["wall"]))
