"""Find outputs that hardly change with the inputs, where a wrong result could pass unseen.

A network with random or badly scaled weights may answer nearly the same for every input: its
biases outweigh everything that was computed from the input, and an error in an early layer is far
below the error allowed for the output.  Such a network gets more inputs, with other values and at
larger scales, until its outputs change; if they never change, inner values are compared as well
(:func:`.verify_outputs.compare_with_reference`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from tracea_graph.check.output_errors import is_float
from tracea_graph.check.worker_process import Array
from tracea_graph.ir import DType
from tracea_graph.ttg.region_graph import TileGraph

__all__ = [
    "FACTOR",
    "UNCHECKED",
    "OutputSensitivity",
    "input_dependent_outputs",
    "largest_output_changes",
    "scaled_feeds",
]

FACTOR = 4.0
"""Multiple of the allowed error by which an output must change between inputs."""
_SCALES = (8.0, 64.0, 512.0)
_SAMPLE = 4096  # elements looked at to tell a mask from numbers

_SIZES = frozenset(("Shape", "Size"))
_FLOATS = frozenset((DType.F16, DType.BF16, DType.F32, DType.F64))

Outputs = Mapping[str, Array]
Feed = Mapping[str, Array]


def input_dependent_outputs(graph: TileGraph) -> frozenset[str]:
    """Return the outputs that are computed from an input, not from constants or sizes alone.

    If any of them have floating-point types, only those are returned: a label or a name often
    stays the same for other inputs.
    """
    reached = set(graph.inputs)
    for region in graph.regions():
        if region.op not in _SIZES and not reached.isdisjoint(region.reads):
            reached.update(region.writes)
    found = frozenset(v for v in graph.outputs if v in reached)
    numbers = frozenset(v for v in found if graph.spec(v).dtype in _FLOATS)
    return numbers or found


def largest_output_changes(runs: Iterable[Outputs]) -> dict[str, float]:
    """Return, by output name, the largest change of an output between runs with equal dims.

    The change of a floating-point output is relative to the larger ``max|y|`` of the two runs.
    For other types it is infinite if an element differs, else 0. Outputs that are empty, or whose
    dims differ in every run, are missing.
    """
    found: dict[str, float] = {}
    first: dict[tuple[str, tuple[int, ...]], Array] = {}
    for name, array in (pair for run in runs for pair in run.items() if pair[1].size):
        if (base := first.setdefault((name, array.shape), array)) is not array:
            found[name] = max(found.get(name, 0.0), _change(base, array))
    return found


def _change(a: Array, b: Array) -> float:
    if not is_float(a):
        return 0.0 if np.array_equal(a, b) else np.inf
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return 0.0
    x, y = x[finite], y[finite]
    scale = max(float(np.max(np.abs(x))), float(np.max(np.abs(y))))
    return float(np.max(np.abs(x - y))) / scale if scale else 0.0


def scaled_feeds(label: str, feed: Feed) -> Iterator[tuple[str, Feed]]:
    """Yield a feed with its numbers multiplied by growing factors; masks stay as they are."""
    numbers = [name for name, array in feed.items() if _is_numbers(array)]
    for scale in _SCALES if numbers else ():
        with np.errstate(over="ignore"):
            more = {name: (feed[name] * scale).astype(feed[name].dtype) for name in numbers}
        if all(np.isfinite(array).all() for array in more.values()):
            yield f"{label}, × {scale:g}", {**feed, **more}


def _is_numbers(array: Array) -> bool:
    """Return True for floats of more than two values, which are no mask, length or flag."""
    if array.dtype.kind != "f" or array.size < 3:
        return False
    return len(np.unique(array.reshape(-1)[:_SAMPLE])) > 2


@dataclass(frozen=True)
class OutputSensitivity:
    """Requirement that outputs change with the inputs, and more feeds to try if they do not.

    Each of ``outputs`` (:func:`input_dependent_outputs`) must change by ``wanted``, a share of
    ``max|y|``.  If they do not, ``feeds`` are tried first; then, if ``scales`` is true, the feed
    called ``label`` with its numbers multiplied by growing factors.
    """

    outputs: frozenset[str] = frozenset()
    wanted: float = 0.0
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    label: str = ""
    scales: bool = True

    def changes(self, runs: Iterable[Outputs]) -> dict[str, float]:
        """Return :func:`largest_output_changes` of the outputs that are checked."""
        return {
            name: by for name, by in largest_output_changes(runs).items() if name in self.outputs
        }

    def more(
        self,
        run: Callable[[Feed], Outputs | None],
        known: Mapping[str, Outputs],
        feeds: Mapping[str, Feed],
    ) -> tuple[dict[str, tuple[Feed, Outputs]], dict[str, float]]:
        """Try more feeds until the outputs change as wanted; return those that helped.

        ``known`` are the answers to ``feeds`` so far; ``run`` returns the answers to one feed, or
        None if the model rejects it.  Returns the feeds that increase the change of some output,
        with their answers, and the change of each output over all feeds.
        """
        found: dict[str, tuple[Feed, Outputs]] = {}
        if not known:
            return found, {}
        label = self.label if self.label in known else next(iter(known))
        so_far = self.changes(known.values())
        scaled = scaled_feeds(label, feeds[label]) if self.scales else ()
        for name, feed in chain(self.feeds.items(), scaled):
            lacking = [o for o in self.outputs if so_far.get(o, 0.0) < self.wanted]
            if not lacking:
                break
            if (answers := run(feed)) is None:
                continue
            runs = [*known.values(), *(other for _, other in found.values()), answers]
            after = {**so_far, **self.changes(runs)}
            if any(after.get(output, 0.0) > so_far.get(output, 0.0) for output in lacking):
                found[name] = feed, answers
            so_far = after
        return found, so_far


UNCHECKED = OutputSensitivity()
"""Requirement that checks no output."""
