"""Answers of the original in plain ONNX Runtime, which candidates are compared with.

The original runs with optimizations off, then on, on equal feeds.  Random values are drawn once,
here, and replace the operators that draw them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from tracea_graph.check.ill_conditioned_outputs import why_unstable
from tracea_graph.check.input_feeds import Feeds
from tracea_graph.check.input_sensitivity import UNCHECKED, OutputSensitivity
from tracea_graph.check.output_errors import (
    NO_INDEX_OUTPUTS,
    IndexOutput,
    is_float,
    measure_errors,
    noise_floors,
    relative_distance,
)
from tracea_graph.check.worker_pool import AcquireWorker, new_worker
from tracea_graph.check.worker_process import (
    Array,
    RandomOutputs,
    RejectedByRuntime,
    SessionPort,
    UnloadableModel,
    Worker,
)
from tracea_graph.config import TOLERANCE
from tracea_graph.errors import WorkerError

__all__ = ["SPARE", "Outputs", "Reference", "random_value_specs", "run_reference"]

PATIENCE = 30.0
"""Minimum time limit of a candidate's run in seconds, however fast the original is."""
SPARE = 1.0
"""Seconds after which spare feeds are no longer run."""
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Reference:
    """Answers of the original: outputs per feed with optimizations ``off`` and ``on``.

    * ``scores``: values by which index outputs are chosen;
    * ``levels``: optimization levels that a candidate must run at (only ``all`` if the original
      needs it);
    * ``trouble``: why the original cannot be a reference; empty if it can;
    * ``valid``: whether onnx's checker accepts the original;
    * ``drawn``: random values to feed, per feed;
    * ``floors``: ONNX Runtime's own distances between levels, per feed and output
      (:func:`.output_errors.noise_floors`);
    * ``extra``: feeds that were added because outputs hardly changed with the others;
    * ``changes``: changes of outputs that are computed from inputs
      (:func:`.input_sensitivity.largest_output_changes`);
    * ``float32``: answers of an fp16 model's float32 form, to which candidates are closest;
    * ``sigmoids``: values of the graph that hold results of a sigmoid;
    * ``quantized``: outputs whose integers stand for numbers.
    """

    off: Mapping[str, Outputs]
    on: Mapping[str, Outputs]
    scores: Mapping[str, Outputs]
    inputs: tuple[SessionPort, ...]
    outputs: tuple[SessionPort, ...]
    rejected: Mapping[str, str]
    levels: tuple[str, ...] = ("off", "all")
    trouble: str = ""
    valid: bool = True
    drawn: Mapping[str, Outputs] = field(default_factory=dict)
    floors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    extra: Feeds = field(default_factory=dict)
    changes: Mapping[str, float] = field(default_factory=dict)
    float32: Mapping[str, Outputs] = field(default_factory=dict)
    sigmoids: frozenset[str] = frozenset()
    quantized: frozenset[str] = frozenset()
    seconds: float = 0.0
    model: Path = Path()
    unloadable: bool = False
    """Whether ONNX Runtime fails to load the original."""

    @property
    def patience(self) -> float:
        """Seconds that one run of a candidate may take before it counts as hanging."""
        return PATIENCE + 100 * self.seconds


def run_reference(
    original: Path,
    feeds: Feeds,
    *,
    index_outputs: Mapping[str, IndexOutput] = NO_INDEX_OUTPUTS,
    watched: Sequence[str] = (),
    sigmoids: Set[str] = frozenset(),
    quantized: Set[str] = frozenset(),
    rounding: float = TOLERANCE.rounding,
    spare: Set[str] = frozenset(),
    trouble: str = "",
    threads: int = 1,
    acquire: AcquireWorker = new_worker,
    sensitivity: OutputSensitivity = UNCHECKED,
    float32_form: Path | None = None,
) -> Reference:
    """Run the original with optimizations off on one thread, then with optimizations on.

    The result can be compared with many candidates.

    * ``threads``: thread count of the candidates; some operators' answers depend on it;
    * ``spare``: feeds at the end that are left out if the others take long;
    * ``watched``: values that must not be so large that rounding changes outputs
      (:func:`.values_before_saturation`);
    * ``sigmoids``: values whose accuracy is relative to 1, not to their largest result
      (:func:`.sigmoid_results`);
    * ``quantized``: outputs whose integers stand for numbers
      (:func:`.output_errors.quantized_caches`);
    * ``rounding``: error that numbers of the model have before they are rounded to integers, as a
      share of them;
    * ``sensitivity``: which outputs must change with the inputs, and how much;
    * ``float32_form``: a model that computes in float32 what the original computes in fp16; it
      must agree with the original to within ``TOLERANCE.half``;
    * ``trouble``: if not empty, the original is not run.
    """
    if trouble:
        return Reference({}, {}, {}, (), (), {}, trouble=f"the original was not run: {trouble}")
    scores = {choice.scores for choice in index_outputs.values()}
    try:
        with acquire(None, {}) as worker:
            return _reference(
                worker,
                original,
                feeds,
                scores,
                watched,
                sigmoids,
                quantized,
                rounding,
                spare,
                threads,
                sensitivity,
                float32_form,
            )
    except WorkerError as error:
        why = f"the original does not run: {error}"
        return Reference(
            {}, {}, {}, (), (), {}, trouble=why, unloadable=isinstance(error, UnloadableModel)
        )


def _reference(
    worker: Worker,
    original: Path,
    feeds: Feeds,
    scores: Set[str],
    watched: Sequence[str],
    sigmoids: Set[str],
    quantized: Set[str],
    rounding: float,
    spare: Set[str],
    threads: int,
    sensitivity: OutputSensitivity,
    float32_form: Path | None,
) -> Reference:
    levels: tuple[str, ...] = ("off", "all")
    extra = _present(worker, original, {*scores, *watched}, feeds)
    try:
        worker.check(original)
        valid = True
    except RejectedByRuntime:  # onnx's checker is stricter than ONNX Runtime
        valid = False
    drawn, unfit = _drawn(worker, original, feeds)
    cut = random_value_specs(drawn)
    feeds = {k: {**feed, **drawn.get(k, {})} for k, feed in feeds.items() if k not in unfit}
    try:
        worker.open("off", original, level="off", extra=extra, cut=cut)
    except RejectedByRuntime:  # some models need ONNX Runtime's optimizations to run at all
        levels = ("all",)
        worker.open("off", original, level="all", extra=extra, cut=cut)
    start = time.monotonic()
    raw, rejected = _runs(worker, "off", feeds, spare)
    seconds = time.monotonic() - start
    rejected |= unfit
    first = next(iter(raw), None)
    stable = first is None or _same(raw[first], worker.run("off", feeds[first]))
    sensitivity = UNCHECKED if drawn else sensitivity
    added, changes = sensitivity.more(partial(_answers, worker, "off"), raw, feeds)
    feeds |= {label: feed for label, (feed, _) in added.items()}
    raw |= {label: answers for label, (_, answers) in added.items()}
    worker.close("off")
    info = worker.open("on", original, level="all", cut=cut, threads=threads)
    on, _ = _runs(worker, "on", {label: feeds[label] for label in raw})
    wide: dict[str, Outputs] = {}
    if float32_form is not None and float32_form != original:
        wide = _in_float32(worker, float32_form, {k: feeds[k] for k in raw}, cut, threads)
        # inputs that were only scaled up may exceed the range of fp16
        for label in [k for k in added if _far_in_float32({k: raw[k]}, {k: wide.get(k, {})})]:
            added.pop(label), raw.pop(label), wide.pop(label, None)
            changes = sensitivity.changes(raw.values())
    inner = set(extra) - {port.name for port in info.outputs}
    off = {k: {n: a for n, a in v.items() if n not in inner} for k, v in raw.items()}
    trouble = (
        _trouble(raw, rejected, stable)
        or _nonfinite_only(off.values())
        or why_unstable(raw.values(), watched)
        or _far_in_float32(off, wide)
    )
    kept = scores | off.get(first or "", {}).keys()
    raw = {k: {n: a for n, a in v.items() if n in kept} for k, v in raw.items()}
    on = {**off, **on}
    shown, ran = {k: feeds[k] for k in off}, ("all",) if wide else levels
    model = (wide and float32_form) or original
    noise = _noise(worker, model, wide or off, ran, shown, cut, quantized, rounding)
    return Reference(
        off, on, raw, info.inputs, info.outputs, rejected, levels, trouble, valid,
        drawn, noise_floors(off, on, noise, sigmoids, quantized), seconds=seconds,
        model=float32_form or original,
        extra={label: feed for label, (feed, _) in added.items()}, changes=changes,
        float32=wide, sigmoids=frozenset(sigmoids), quantized=frozenset(quantized),
    )  # fmt: skip


def _present(worker: Worker, original: Path, names: Set[str], feeds: Feeds) -> list[str]:
    """Return those of ``names`` that the original's graph has; import may have added others."""
    if not names:
        return []
    fed = {name for feed in feeds.values() for name in feed}
    return sorted(names & (fed | {*worker.values(original)}))


def _in_float32(
    worker: Worker, model: Path, feeds: Feeds, cut: RandomOutputs, threads: int
) -> dict[str, Outputs]:
    """Return the answers of the model's float32 form."""
    worker.open("float32", model, level="all", cut=cut, threads=threads)
    found, _ = _runs(worker, "float32", feeds)
    worker.close("float32")
    return found


def _noise(
    worker: Worker,
    model: Path,
    answers: Mapping[str, Outputs],
    levels: Sequence[str],
    feeds: Feeds,
    cut: RandomOutputs,
    quantized: Set[str],
    rounding: float,
) -> dict[str, dict[str, float]]:
    """Return how far outputs move, per feed, if operands that are rounded to integers move by
    ``rounding``, and scores that an added mask hides by a unit in the last place; empty for a
    model that does neither.

    ``answers`` are those without that, at the first of ``levels``.  A single integer that is
    rounded the other way moves an output further than all rounding of float32.  ONNX Runtime's own
    optimization levels differ in which integers are.  So does a score in a row of which a mask of
    −1e4 hides every key (:func:`.instrumented_models.add_jitter`).
    """
    if not answers or not worker.takes_jitter(model):
        return {}
    try:
        worker.open("jitter", model, level=levels[0], cut=cut, jitter=rounding)
        moved, _ = _runs(worker, "jitter", feeds)
    except RejectedByRuntime:  # what is rounded is no float32 number
        return {}
    worker.close("jitter")
    found = {
        label: {
            name: relative_distance(run[name], y, name in quantized)
            for name, y in answers[label].items()
        }
        for label, run in moved.items()
    }
    return {
        label: {name: far for name, far in run.items() if math.isfinite(far)}
        for label, run in found.items()
    }


def _drawn(
    worker: Worker, original: Path, feeds: Feeds
) -> tuple[dict[str, Outputs], dict[str, str]]:
    """Return what the original's random operators drew per feed, and the feeds it rejected."""
    names = worker.random(original)
    if not names:
        return {}, {}
    worker.open("drawing", original, extra=names)
    found, rejected = _runs(worker, "drawing", feeds)
    worker.close("drawing")
    return {label: {n: run[n] for n in names} for label, run in found.items()}, rejected


def random_value_specs(drawn: Mapping[str, Outputs]) -> RandomOutputs:
    """Return the element type and dims of each drawn value; a dim that differs by feed is None."""
    found: dict[str, tuple[str, tuple[int | None, ...]]] = {}
    for run in drawn.values():
        for name, array in run.items():
            before = found.get(name, ("", array.shape))[1]
            dims = (a if a == b else None for a, b in zip(before, array.shape, strict=True))
            found[name] = (array.dtype.name, tuple(dims))
    return found


def _runs(
    worker: Worker, name: str, feeds: Feeds, spare: Set[str] = frozenset()
) -> tuple[dict[str, Outputs], dict[str, str]]:
    """Return answers per feed, and the messages about feeds that were rejected."""
    answers: dict[str, Outputs] = {}
    rejected: dict[str, str] = {}
    end = time.monotonic() + SPARE
    for label, feed in feeds.items():
        if label in spare and time.monotonic() > end:
            continue
        try:
            answers[label] = worker.run(name, feed)
        except RejectedByRuntime as error:
            rejected[label] = str(error)
    return answers, rejected


def _answers(worker: Worker, name: str, feed: Mapping[str, Array]) -> Outputs | None:
    """Return the answers to one feed; None if it is rejected."""
    try:
        return worker.run(name, feed)
    except RejectedByRuntime:
        return None


def _trouble(runs: Mapping[str, Outputs], rejected: Mapping[str, str], stable: bool) -> str:
    if not runs:
        first = next(iter(rejected.values()), "there were none")
        return f"the original rejects every generated input ({first}); give real ones with --data"
    return "" if stable else "the original answers differently each time it runs"


def _nonfinite_only(runs: Collection[Outputs]) -> str:
    """Return why answers without a finite number compare nothing; empty if there is one."""
    arrays = [a for run in runs for a in run.values() if a.size]
    if not arrays or any(not is_float(a) or np.isfinite(a).any() for a in arrays):
        return ""
    return "the original answers nothing but NaN and infinities; give other inputs with --data"


def _far_in_float32(off: Mapping[str, Outputs], wide: Mapping[str, Outputs]) -> str:
    """Return why float32 cannot stand for fp16; empty if it can."""
    for label, run in wide.items():
        for name, array in run.items():
            wanted = off[label][name]
            if is_float(wanted) and relative_distance(array, wanted) > TOLERANCE.half:
                return (
                    f"the original's output {name!r} in float32 differs from fp16 by more than "
                    f"{TOLERANCE.half:g} of max|y| (with {label}): the model depends on the range "
                    "or the rounding of fp16"
                )
    return ""


def _same(a: Outputs, b: Outputs) -> bool:
    return all(_identical(a[name], b[name]) for name in a)


def _identical(a: Array, b: Array) -> bool:
    return a.shape == b.shape and (
        measure_errors(a, b).max_abs == 0.0 if is_float(a) else np.array_equal(a, b)
    )
