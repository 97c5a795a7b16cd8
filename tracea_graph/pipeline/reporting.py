"""Collect the report of one optimization and publish its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tracea_graph.ir import DType, Node, Weight
from tracea_graph.onnx_io import Model, is_tracea_result, write_original
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import ALIGNED, round_up_aligned
from tracea_graph.options import Options
from tracea_graph.passes.attention.impose_window import ImposeWindow
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.passes.sparse.low_rank_exact import LOW_RANK, LOW_RANK_EXACT
from tracea_graph.passes.sparse.zero_structure import DENSE, WeightScan, ZeroStructure, as_matrix
from tracea_graph.pipeline.candidate_models import BuiltModel, CandidateBuilder
from tracea_graph.pipeline.compression_search import ChosenCompression
from tracea_graph.pipeline.decision_cache import DecisionCache
from tracea_graph.pipeline.evaluator import Evaluator
from tracea_graph.pipeline.model_inputs import ModelInputs
from tracea_graph.pipeline.output_files import ResultPaths, StagingFolder, write_text
from tracea_graph.pipeline.plan_lock import PlanLock
from tracea_graph.pipeline.report_notes import count_nodes, guard_notes, precision_notes
from tracea_graph.pipeline.result_assembly import AssembledNode, Assembly
from tracea_graph.pipeline.step_timer import Deadline, StepTimer
from tracea_graph.reason_codes import Code, Reason, code_of
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.target import host_fingerprint
from tracea_graph.toolchain import LibraryManifest
from tracea_graph.ttg import TileGraph
from tracea_graph.version import runtime_conflict, versions
from tracea_graph.views import (
    CompressionRow,
    GroupRow,
    Report,
    StorageRow,
    TimingRow,
    WeightRow,
    gain_in_words,
    rule_rows,
)
from tracea_graph.views.kernel_table import KernelRow, kernel_rows
from tracea_graph.views.report_record import overridable_warning

__all__ = ["Reporter", "WeightProperty", "analyze_weights", "storage_rows", "weight_rows"]

_SKIPPED = (
    "channels whose weights are zero were dropped: a NaN or an infinity that reached the outputs "
    "only through such channels no longer does"
)


@cache
def _machine() -> Mapping[str, Any]:
    return host_fingerprint()


@dataclass
class Reporter:
    """Fills the report while the pipeline runs, and publishes the result's files."""

    paths: ResultPaths
    model: Model
    inputs: ModelInputs
    levels: tuple[str, ...]
    options: Options
    notes: Sequence[str]
    timer: StepTimer
    compression: ChosenCompression
    deadline: Deadline = field(default_factory=Deadline)
    lock: PlanLock | None = None
    decision_cache: DecisionCache = field(default_factory=DecisionCache)
    assembly: Assembly | None = None
    holdout_error: float | None = None
    weight_properties: tuple[WeightProperty, ...] = ()
    told: tuple[str, ...] = ()
    trace: DecisionTrace = field(default_factory=DecisionTrace)

    def planned(self, assembly: Assembly, trace: DecisionTrace, scan: WeightScan | None) -> None:
        """Record the plan; ``scan`` is the weight analysis, None if it was not requested."""
        self.assembly, self.trace = assembly, trace
        self.notes = (*self.notes, *trace.kept_exact())
        if scan is not None:
            self.timer.step("scanning weights")
            self.weight_properties = analyze_weights(self.model.graph, scan)

    def confirm(self, kept: BuiltModel | None) -> None:
        """Measure, on held-out inputs, the error of the model to be published.

        Raises VerifyError as :meth:`ChosenCompression.confirm` does.
        """
        self.holdout_error, self.told = self.compression.confirm(kept)

    def worth_building(self) -> bool:
        """Whether a candidate would differ from the original.

        With custom ops, it does if a region is fused; without, if the graph changed at all.
        """
        if self.options.custom_ops:
            return bool(self.assembly and self.assembly.placed)
        rewritten = self.assembly and any(r.rule for r in self.assembly.graph.regions())
        return bool(rewritten) or count_nodes(self.model.graph) != self.model.node_count

    def publish(
        self,
        kept: BuiltModel | None,
        evaluator: Evaluator,
        builder: CandidateBuilder,
        stage: StagingFolder,
    ) -> Report:
        """Stage the final files, write the report beside them, and move all of them into place."""
        kept, final = self._confirmed(kept, evaluator, builder, stage)
        if final is None:
            model = stage.model
            data = write_original(self.model.runnable, model).data
        else:
            data, model = final.data, final.model
        report = self._report(kept, evaluator, data)
        stage.report.write_text(report.to_json(), encoding="utf-8")
        built = final.built.all if final and final.built else ()
        stage.publish(data, [each.path for each in built], model)
        decisions = builder.decisions(evaluator.dropped if kept else frozenset())
        lock = PlanLock.of(
            self.model.graph, self.options, self.levels, decisions, report.groups,
            kept is not None, bool(self.model.guarded),
        )  # fmt: skip
        if self.options.save_lock is not None:
            write_text(self.options.save_lock, lock.to_json())
        if final and evaluator.decision is not None and not evaluator.interrupted:
            library_hash, busy = final.built.sha256 if final.built else "", evaluator.decision.busy
            self.decision_cache.store(lock, report, library_hash, final.stored, busy)
        if kept and kept.built and report.library:
            builder.libraries.published(kept.built, Path(report.library))
        return report

    def _confirmed(
        self,
        kept: BuiltModel | None,
        evaluator: Evaluator,
        builder: CandidateBuilder,
        stage: StagingFolder,
    ) -> tuple[BuiltModel | None, BuiltModel | None]:
        """Return what is kept and its staged files; less of it as long as they are wrong."""
        if kept is None:
            return None, None
        final = self._final(kept, builder, stage)
        self.timer.step("confirming")
        if evaluator.confirm(final, kept):
            return kept, final
        return self._confirmed(evaluator.repair(kept), evaluator, builder, stage)

    def _final(
        self, kept: BuiltModel, builder: CandidateBuilder, stage: StagingFolder
    ) -> BuiltModel:
        """Stage the final model, with the library that was measured."""
        final = kept
        if kept.model not in (stage.model, stage.beside):
            levels = kept.built.levels if kept.built else None
            final = builder.write(stage.model, kept.assembly, kept.trace, levels=levels)
        if self.options.keep_sources is not None:
            builder.write_sources(kept.assembly, self.options.keep_sources)
        return final

    # ---- the report --------------------------------------------------------------------

    def _report(self, kept: BuiltModel | None, evaluator: Evaluator, data: Path | None) -> Report:
        self.timer.step("done")
        libraries = self.paths.published(kept.model, kept.built) if kept else {}
        check, timings = evaluator.verification, _timings(evaluator)
        earlier = self.lock.timings if self.lock else ()
        placed = kept.assembly.placed if kept else []
        before = self.model.node_count
        return Report(
            input=str(self.model.path),
            output=str(self.paths.model),
            outcome="improved" if kept or self._is_float32 else "kept original",
            reason=str(reason := self._reason(kept, evaluator)),
            code=code_of(reason, Code.NO_REWRITE),
            library=next(iter(libraries.values()), None),
            libraries={name: file for name, file in libraries.items() if name},
            data=str(self.paths.model.with_name(data.name)) if data else None,
            domain=kept.built.domain if kept and kept.built else None,
            kernels=len(placed),
            nodes_before=before,
            nodes_after=count_nodes(kept.assembly.graph) if kept else before,
            status=("insensitive" if check.blind else check.status) if check else "skipped",
            status_reason=check.sentence if check else self._unverified(),
            error=check.worst if check and check.outputs else None,
            floor=max((o.floor for o in check.outputs), default=None) if check else None,
            backend=kept.assembly.backend.name if kept and kept.library else "",
            levels=kept.levels(self.levels) if kept and kept.library else (),
            groups=self._groups(kept, evaluator),
            rules=rule_rows(self.trace),
            kernel_calls=self._kernel_calls(kept),
            compact_weights=self._compact_weights(kept),
            weight_analysis=self._weight_analysis(kept),
            compressed=self._compressed(kept),
            holdout_error=self.holdout_error,
            timings=(timings or earlier) if kept else (),
            timed_at=self.lock.made if self.lock and kept and earlier and not timings else "",
            tried=() if kept else timings,
            warnings=(
                *self._warnings(evaluator),
                *_unvisited(placed, self.model),
                *self._faults(kept),
            ),
            bindings=self.inputs.labels,
            notes=(
                *self.inputs.notes,
                *self.compression.notes,
                *evaluator.notes,
                *_skipped(kept),
                *_required(kept),
                *(kept.assembly.notes if kept else ()),
                *(f"the result needs {p} too" for p in self.options.custom_ops_libraries),
                *guard_notes(kept is not None, self.model),
                *precision_notes(kept is not None, self.model),
            ),
            rejected=dict(check.rejected) if check else {},
            faults=tuple(self._faults(kept).values()),
            seconds={**self.timer.seconds, **evaluator.builder.seconds},
            versions=versions(),
            machine=dict(_machine()),
            manifest=kept.built.manifest if kept and kept.built else LibraryManifest(),
        )

    def _faults(self, kept: BuiltModel | None) -> dict[str, str]:
        """Return a warning and a traceback for every rule that raised in any plan."""
        return {**self.trace.faults(), **(kept.trace.faults() if kept else {})}

    def _weight_analysis(self, kept: BuiltModel | None) -> tuple[WeightRow, ...]:
        """Return the weight analysis, or the one an equal earlier run recorded."""
        if self.lock and self.lock.cached:
            return self.lock.weight_analysis
        trace = kept.trace if kept else self.trace
        return weight_rows(self.weight_properties, trace, kept is not None)

    def _kernel_calls(self, kept: BuiltModel | None) -> tuple[KernelRow, ...]:
        assembly = kept.assembly if kept else self.assembly
        return kernel_rows(assembly.decisions) if assembly else ()

    def _compact_weights(self, kept: BuiltModel | None) -> tuple[StorageRow, ...]:
        if self.assembly is None:
            return ()
        return storage_rows(self.assembly, kept.assembly.groups.keys() if kept else frozenset())

    def _compressed(self, kept: BuiltModel | None) -> tuple[CompressionRow, ...]:
        """Return what was chosen for each layer, and whether it was kept."""
        placed = kept.assembly.placed if kept else []
        stored = [v for item in placed for v in item.region.operands]

        def stays(row: CompressionRow) -> bool:
            return any(v.startswith(row.marks) for v in stored)

        return tuple(replace(row, kept=stays(row)) for row in self.compression.rows)

    def _unverified(self) -> str:
        return "nothing was rewritten" if self.options.verify else "--no-verify was given"

    def _reason(self, kept: BuiltModel | None, evaluator: Evaluator) -> str:
        if kept is None and self._is_float32:
            again = replace(self.model, widened=frozenset(), float32_form=None)
            why = replace(self, model=again)._reason(None, evaluator)
            return Reason(f"the model now runs in float32; beyond that, {why}", Code.IMPROVED)
        if kept is None:
            if evaluator.reason:
                return evaluator.reason
            if self.lock:
                return Reason(f"{self.lock.where} says so", Code.LOCKED)
            if self.deadline.cut:
                return Reason(next(iter(self.deadline.cut)), Code.OUT_OF_BUDGET)
            return Reason("no rewrite applies", Code.NO_REWRITE)
        before, after = self.model.node_count, count_nodes(kept.assembly.graph)
        left = kept.assembly.nodes_said(after, self.compression.planner.cost)
        timings = _timings(evaluator)
        gain = gain_in_words(timings) if timings else "not timed: it may be slower"
        why = self.lock.because if self.lock else gain
        return Reason(f"{before} node{'s' * (before != 1)} became {left}, {why}", Code.IMPROVED)

    @property
    def _is_float32(self) -> bool:
        """Whether ONNX Runtime runs the model only in float32."""
        return self.model.runnable != self.model.path

    def _warnings(self, evaluator: Evaluator) -> tuple[str, ...]:
        found = [*self.notes, *self.compression.warnings, *self.told, *evaluator.warnings]
        found += self.deadline.cut
        found += filter(None, (runtime_conflict(),))
        if is_tracea_result(self.model):
            name = self.model.path.name
            found.append(f"{name} is a result of this tool: optimize the original instead")
        if self.options.windows and ImposeWindow.name not in self.trace.applied():
            found.append(
                "--window changes nothing: no self-attention was recognized in its layers"
                " (tracea explain says why)"
            )
        if self.model.unknown:
            found.append(overridable_warning(len(self.model.unknown)))
        rejected = evaluator.verification.rejected if evaluator.verification else {}
        for label in (label for label in self.inputs.timing if label in rejected):
            found.insert(0, f"the original rejects inputs with {label}: {_brief(rejected[label])}")
        return tuple(found)

    def _groups(self, kept: BuiltModel | None, evaluator: Evaluator) -> tuple[GroupRow, ...]:
        """Return what was decided about each group, in graph order; later groups come last.

        Cached decisions report what was found when they were made.
        """
        if kept is not None and self.lock and self.lock.cached:
            return self.lock.groups
        verdicts = (
            {v.group.key: v for v in evaluator.decision.verdicts} if evaluator.decision else {}
        )
        final = kept.assembly.groups if kept else {}
        planned = self.assembly.groups if self.assembly else {}
        rows = []
        for key, items in {**planned, **final}.items():
            verdict, stays = verdicts.get(key), key in final
            measured = verdict.ratios.values() if verdict and verdict.alone else ()
            gains = tuple(ratio.median for ratio in measured)
            reason: str
            if verdict is None or verdict.kept != stays:
                reason = _unjudged(
                    stays, key in planned, evaluator.culprit_errors.get(key, ""), kept is None
                )
            else:
                reason = verdict.reason
            names = tuple(name for item in items for name in item.originals)
            rule, count = items[0].region.rule, len(items)
            code = code_of(reason, Code.FASTER if stays else Code.NOT_FASTER)
            rows.append(GroupRow(key, rule, count, stays, reason, gains, names, code))
        return tuple(rows)


def _unjudged(stays: bool, planned: bool, error: str, nothing_stays: bool) -> Reason:
    """Return why a group that was not timed on its own stays or goes; ``error`` is its error."""
    if stays:
        if planned:
            return Reason("kept, not timed", Code.UNMEASURED)
        return Reason("kept: formed after other rewrites were dropped", Code.FORMED_LATER)
    if error:
        return Reason(f"dropped: with it, {error}", code_of(error, Code.OUT_OF_TOLERANCE))
    if nothing_stays:
        return Reason("dropped with all other rewrites", Code.ORIGINAL_KEPT)
    return Reason("dropped: it needs rewrites that were dropped", Code.NEEDS_DROPPED)


def _timings(evaluator: Evaluator) -> tuple[TimingRow, ...]:
    if evaluator.decision is None:
        return ()
    return tuple(
        TimingRow(
            threads, label, r.a_ms, r.b_ms, r.a_min, r.b_min, r.median, r.low, r.high, r.pairs
        )
        for (threads, label), r in evaluator.decision.total.items()
    )


def _brief(said: str) -> str:
    """Return ONNX Runtime's message without its source location."""
    said = said.rpartition("Status Message: ")[2].rpartition(" was false. ")[2]
    return said.split("\n")[0][:200]


def _unvisited(placed: Sequence[AssembledNode], model: Model) -> Iterator[str]:
    """Yield a warning per set of tiles that were set by hand and that no kernel keeps to."""
    read = {v for item in placed for v in item.region.operands}
    for constant, pattern in model.graph.patterns.items():
        maps = (v for v in read if v.startswith(constant) and v.endswith("_map"))
        if constant in model.graph.weights and next(maps, None) is None:
            yield (
                f"no kernel keeps to the tiles of {pattern.value!r}, which only act as a mask; "
                "tracea explain says why"
            )


def _skipped(kept: BuiltModel | None) -> tuple[str, ...]:
    """Explain how skipping weights affects NaN and infinities that the kernels do not check."""
    return (_SKIPPED,) if kept and kept.trace.applied().get(DEAD_CHANNELS) else ()


def _required(kept: BuiltModel | None) -> tuple[str, ...]:
    """Say what a machine must have to run the library."""
    if kept is None or kept.built is None:
        return ()
    return tuple(filter(None, [kept.assembly.backend.requirement(kept.built.manifest)]))


_LEAST = 1 << 14
"""Matrices with fewer elements are not analyzed."""
_PRODUCTS = ("MatMul", "Gemm", "Conv")
_NORMS = ("BatchNormalization", "LayerNormalization", "InstanceNormalization")
_LOOKUP = ("Gather",)
_OF_ZEROS = (
    "tiled-gemm", "block-sparse-gemm", "unstructured-sparse-gemm", "tiled-column-block-gemm",
    "column-block-gemm",
)  # fmt: skip
_OF_LINES, _OF_RANK = (DEAD_CHANNELS, *_OF_ZEROS), (LOW_RANK_EXACT,)
_OF_GROUPS = ("two-of-four-gemm", *_OF_ZEROS)
"""Rules that exploit zeros, zero rows or columns, low ranks, and N:M patterns."""


@dataclass(frozen=True)
class WeightProperty:
    """Structure found in a weight, and the bytes of the weight before and after exploiting it.

    ``found`` describes it in words; ``rules`` can exploit it.  No rule does so for weights stored
    twice.
    """

    weight: str
    found: str
    before: int
    after: int
    nodes: tuple[str, ...]
    rules: tuple[str, ...] = ()


def analyze_weights(graph: TileGraph, scan: WeightScan) -> tuple[WeightProperty, ...]:
    """Find exploitable structure in an imported graph's weights, in graph order.

    In matrices: zero rows, columns and blocks, N:M patterns, unstructured zeros, and exact low
    rank. In norms: channels with scale zero.  Across weights: copies, transposed copies, and
    matrices with several readers.
    """
    readers: dict[str, list[Node]] = defaultdict(list)
    for region in graph.regions():
        for node in region.nodes:
            for value in node.inputs:
                readers[value].append(node)
    stored = (w for w in graph.weights.values() if not w.filled and w.dtype is DType.F32)
    known = [w for w in stored if readers[w.name]]
    found = [f for w in known for f in _of_scale(w, readers[w.name])]
    large = [w for w in known if w.count >= _LEAST and len(w.shape) >= 2]
    for weight in large:
        nodes = [n for n in readers[weight.name] if n.op in _PRODUCTS and _second(n, weight)]
        if nodes:
            found += _of_matrix(weight, nodes, scan)
    return (*found, *_copies(large, readers))


def weight_rows(
    found: tuple[WeightProperty, ...], trace: DecisionTrace, kept: bool
) -> tuple[WeightRow, ...]:
    """Return a row per weight property, such as zeros: the rule that uses it, or why none does.

    ``kept`` says whether the rewrites are part of the result.
    """
    applied: dict[tuple[str, str], str] = {}
    missed: dict[tuple[str, str], str] = {}
    for decision in trace.entries:
        said = applied if decision.verdict == "applied" else missed
        for name in decision.nodes:
            what = decision.reason if said is missed else decision.rule
            said.setdefault((name, decision.rule), what)

    def used(one: WeightProperty) -> str:
        sites = [(name, rule) for rule in one.rules for name in one.nodes]
        rule = next((applied[site] for site in sites if site in applied), "")
        if rule:
            return rule if kept else f"no: {rule} was not kept"
        why = next((missed[site] for site in sites if missed.get(site)), "")
        return f"no: {why}" if why else "no"

    return tuple(WeightRow(f.weight, f.found, f.before, f.after, used(f)) for f in found)


def _second(node: Node, weight: Weight) -> bool:
    return len(node.inputs) > 1 and node.inputs[1] == weight.name


def _names(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(n.label for n in nodes)


def _of_scale(weight: Weight, nodes: list[Node]) -> Iterator[WeightProperty]:
    """Channels that a norm multiplies by zero."""
    norms = [n for n in nodes if n.op in _NORMS and _second(n, weight)]
    if norms and (dead := weight.count - int(np.count_nonzero(weight.array()))):
        words = f"{dead} of {weight.count} channels have scale zero"
        size = weight.nbytes
        yield WeightProperty(weight.name, words, size, size, _names(norms), _OF_LINES)


def _of_matrix(weight: Weight, nodes: list[Node], scan: WeightScan) -> Iterator[WeightProperty]:
    structure, names = scan.structure(weight), _names(nodes)
    results_first = nodes[0].op == "Conv" or bool(nodes[0].attrs.get("transB", 0))
    if structure is not DENSE:
        for words, left, rules in _structures_of(structure, results_first):
            after = round(left * weight.nbytes)
            yield WeightProperty(weight.name, words, weight.nbytes, after, names, rules)
    if nodes[0].op != "Conv" and (factors := scan.ranks.factors(weight)) is not None:
        a, b = factors
        yield WeightProperty(
            weight.name, f"exactly of rank {a.shape[1]}", weight.nbytes,
            4 * (a.size + b.size), names, _OF_RANK,
        )  # fmt: skip


def _structures_of(
    structure: ZeroStructure, results_first: bool
) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Return each structure found in a matrix, the share of the matrix it leaves to store, and the
    rules that can exploit it."""
    sides = ("outputs", "inputs") if results_first else ("inputs", "outputs")
    for lines, side in zip((structure.rows, structure.columns), sides, strict=True):
        if lines.size:
            dead = int(lines.sum())
            yield f"{dead} of {lines.size} {side} zero", 1 - dead / lines.size, _OF_LINES
    if structure.blocks > 0.1:
        words = f"{100 * structure.blocks:.0f} % of blocks {ALIGNED} × {ALIGNED} zero"
        yield words, 1 - structure.blocks, _OF_ZEROS
    elif structure.pattern:
        n, m, axis = structure.pattern
        left = 1 - structure.zeros + 1 / 32
        yield f"{n}:{m} along the {sides[axis]}", left, _OF_GROUPS
    elif structure.zeros:
        left = 1 - structure.zeros + 1 / 32
        yield f"{100 * structure.zeros:.0f} % zeros, unstructured", left, _OF_ZEROS


def _copies(large: list[Weight], readers: Mapping[str, list[Node]]) -> Iterator[WeightProperty]:
    """Matrices stored twice, also transposed, and matrices with several kinds of readers."""
    first: dict[tuple[int, int, bytes], Weight] = {}
    for weight in large:
        matrix = as_matrix(weight)
        names = _names(readers[weight.name])
        ops = {n.op for n in readers[weight.name]}
        if ops & set(_LOOKUP) and ops & {*_PRODUCTS, "Transpose"}:
            words = "shared by an embedding lookup and a matrix multiplication"
            yield WeightProperty(weight.name, words, weight.nbytes, weight.nbytes, names)
        for turned, view in ((False, matrix), (True, matrix.T)):
            probe = np.ascontiguousarray(view[:4, :4]).tobytes()
            other = first.get((*view.shape, probe))
            if other is not None and np.array_equal(as_matrix(other), view):
                kind = "the transpose" if turned else "a copy"
                yield WeightProperty(
                    weight.name, f"{kind} of {other.name!r}", weight.nbytes, 0, names
                )
                break
        else:
            probe = np.ascontiguousarray(matrix[:4, :4]).tobytes()
            first.setdefault((*matrix.shape, probe), weight)


_RANKS = {LOW_RANK_EXACT: "exact rank"} | dict.fromkeys(LOW_RANK, "low rank")


def storage_rows(planned: Assembly, kept: Set[str]) -> tuple[StorageRow, ...]:
    """Return a row for each planned group of matmuls that stores less; ``kept`` are kept groups.

    A row compares the bytes of the dense matrix with those stored instead: blocks or numbers with
    their indices (block-sparse and unstructured weights), or two factors (low rank, listed with
    the last factor).
    """
    rows = []
    for group, items in planned.groups.items():
        params = items[0].region.params
        if not isinstance(params, GemmParams):
            continue
        if params.layout.skips:
            technique = params.layout.skips
        elif items[0].region.rule in _RANKS:
            technique = _RANKS[items[0].region.rule]
        else:
            continue
        before = sum(_dense_bytes(planned, item) for item in items)
        after = sum(_stored_bytes(planned, item) for item in items)
        rows.append(StorageRow(group, technique, len(items), before, after, group in kept))
    return tuple(rows)


def _stored_bytes(planned: Assembly, item: AssembledNode) -> int:
    """Return the bytes of the matrix and of its block indices or bitmap, if it has any."""
    params, operands = item.region.params, item.region.operands
    return sum(planned.graph.weights[name].nbytes for name in params.stored(operands))


def _dense_bytes(planned: Assembly, item: AssembledNode) -> int:
    """Return the bytes of the dense float32 matrix; 0 for the first of two low-rank factors."""
    region = item.region
    params: GemmParams = region.params
    if region.rule not in _RANKS:
        return 4 * params.k * round_up_aligned(params.n)
    written = {v for node in region.nodes for v in node.outputs}
    if region.results[0] not in written:
        return 0
    sources = [n.inputs[1] for n in region.nodes if n.op in ("MatMul", "Gemm")]
    weights = [planned.graph.weight(source) for source in sources]
    return sum(4 * prod(weight.shape) for weight in weights if weight)
