"""Collecting the report of one optimization, and publishing its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tracea_graph.hardware import fingerprint, profile_cpu
from tracea_graph.onnx_io import Model, is_result, write_original
from tracea_graph.options import Options
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.passes.sparse.structure import WeightScan
from tracea_graph.pipeline.assembly import Assembly
from tracea_graph.pipeline.candidates import Built, Workshop
from tracea_graph.pipeline.clock import Clock, Deadline
from tracea_graph.pipeline.compressing import Compression
from tracea_graph.pipeline.findings import Finding, finding_rows, findings_of
from tracea_graph.pipeline.inputs import Inputs
from tracea_graph.pipeline.judging import Judge
from tracea_graph.pipeline.lock import Lock
from tracea_graph.pipeline.memory import Memory
from tracea_graph.pipeline.output import Paths, Stage, write_text
from tracea_graph.pipeline.packages import runtime_conflict, versions
from tracea_graph.pipeline.savings import saving_rows
from tracea_graph.rewrite import Trace
from tracea_graph.views import (
    CompressionRow,
    FindingRow,
    GroupRow,
    Report,
    SavingRow,
    TimingRow,
    gain_of,
    rule_rows,
)
from tracea_graph.views.report import fed_too

__all__ = ["Reporter"]


_SKIPPED = (
    "channels without weights are left out: a NaN or an infinity that reached the outputs through "
    "them alone no longer does"
)


@cache
def _machine() -> Mapping[str, Any]:
    return fingerprint(profile_cpu())


@dataclass
class Reporter:
    """Knows the result's files and fills the report while the pipeline runs."""

    paths: Paths
    model: Model
    inputs: Inputs
    isas: tuple[str, ...]
    options: Options
    notes: Sequence[str]
    clock: Clock
    compression: Compression
    deadline: Deadline = field(default_factory=Deadline)
    lock: Lock | None = None
    memory: Memory = field(default_factory=Memory)
    assembly: Assembly | None = None
    held_out: float | None = None
    findings: tuple[Finding, ...] = ()
    told: tuple[str, ...] = ()
    trace: Trace = field(default_factory=Trace)

    def planned(self, assembly: Assembly, trace: Trace, scan: WeightScan | None) -> None:
        """What was planned; ``scan`` says what the weights hold, None that nobody asks."""
        self.assembly, self.trace = assembly, trace
        if scan is not None:
            self.clock.step("scanning weights")
            self.findings = findings_of(self.model.graph, scan)

    def confirm(self, kept: Built | None) -> None:
        """Measure what is to be published on inputs that steered nothing.

        Raises VerifyError as :meth:`Compression.confirm` does.
        """
        self.held_out, self.told = self.compression.confirm(kept)

    def worth_building(self) -> bool:
        """False if no rewrite applies; plain ONNX is worth it if the graph became another."""
        if self.options.custom_ops:
            return bool(self.assembly and self.assembly.placed)
        return self._count() != len(self.model.skeleton.graph.node)

    def publish(
        self, kept: Built | None, judge: Judge, workshop: Workshop, stage: Stage
    ) -> Report:
        """Stage the final files, write the report beside them, and move all into place."""
        if kept is None:
            final, library, model = None, None, stage.model
            data = write_original(self.model.path, model).data
        else:
            final = self._final(kept, workshop, stage)
            data, library, model = final.data, final.library, final.model
            self.clock.step("confirming")
            judge.confirm(final, kept)
        report = self._report(kept, judge, data)
        stage.report.write_text(report.to_json(), encoding="utf-8")
        stage.publish(data, library, model)
        recipe = workshop.recipe(judge.dropped if kept else frozenset())
        groups = [asdict(row) for row in report.groups]
        lock = Lock.of(
            self.model.graph, self.options, self.isas, recipe, groups, kept is not None,
            bool(self.model.guarded),
        )  # fmt: skip
        if self.options.save_lock is not None:
            write_text(self.options.save_lock, lock.to_json())
        if final is not None:
            library_hash = final.built.sha256 if final.built else ""
            self.memory.keep(lock, report, library_hash, final.stored)
        if kept is not None and kept.built is not None:
            workshop.foundry.published(kept.built, self.paths.library)
        return report

    def _final(self, kept: Built, workshop: Workshop, stage: Stage) -> Built:
        """The final model, staged; its library is the one that was measured."""
        staged = kept.model in (stage.model, stage.beside)
        final = kept if staged else workshop.write(stage.model, kept.assembly, kept.trace)
        if self.options.keep_sources is not None:
            workshop.write_sources(kept.assembly, self.options.keep_sources)
        return final

    # ---- the report --------------------------------------------------------------------

    def _report(self, kept: Built | None, judge: Judge, data: Path | None) -> Report:
        self.clock.step("done")
        check, timings = judge.verification, _timings(judge)
        placed = kept.assembly.placed if kept else []
        before = len(self.model.skeleton.graph.node)
        return Report(
            input=str(self.model.path),
            output=str(self.paths.model),
            outcome="improved" if kept else "kept original",
            reason=self._reason(kept, judge),
            library=str(self.paths.library) if kept and kept.library else None,
            data=str(self.paths.model.with_name(data.name)) if data else None,
            domain=kept.built.domain if kept and kept.built else None,
            kernels=len(placed),
            nodes_before=before,
            nodes_after=len(kept.assembly.graph.regions()) if kept else before,
            status=check.status if check else "skipped",
            status_reason=check.sentence if check else self._unverified(),
            error=check.worst if check and check.outputs else None,
            floor=max((o.floor for o in check.outputs), default=None) if check else None,
            isas=self.isas if kept and kept.library else (),
            groups=self._groups(kept, judge),
            rules=rule_rows(self.trace),
            savings=self._savings(kept),
            findings=self._findings(kept),
            compressed=self._compressed(kept),
            held_out=self.held_out,
            timings=timings if kept else (),
            tried=() if kept else timings,
            warnings=(*self._warnings(judge), *self._faults(kept)),
            bindings=self.inputs.labels,
            notes=(
                *self.inputs.notes,
                *self.compression.notes,
                *judge.notes,
                *_skipped(kept),
                *_compared(kept, self.model),
            ),
            rejected=dict(check.rejected) if check else {},
            faults=tuple(self._faults(kept).values()),
            seconds={**self.clock.seconds, **judge.workshop.seconds},
            versions=versions(),
            machine=dict(_machine()),
            manifest=dict(kept.built.manifest) if kept and kept.built else {},
        )

    def _faults(self, kept: Built | None) -> dict[str, str]:
        """A warning and a traceback for every rule that raised, in the first plan or the last."""
        return {**self.trace.faults(), **(kept.trace.faults() if kept else {})}

    def _findings(self, kept: Built | None) -> tuple[FindingRow, ...]:
        """What the weights hold; equal weights need no second look."""
        if self.lock and self.lock.recalled:
            return self.lock.findings
        trace = kept.trace if kept else self.trace
        return finding_rows(self.findings, trace, kept is not None)

    def _savings(self, kept: Built | None) -> tuple[SavingRow, ...]:
        if self.assembly is None:
            return ()
        return saving_rows(self.assembly, kept.assembly.groups.keys() if kept else frozenset())

    def _compressed(self, kept: Built | None) -> tuple[CompressionRow, ...]:
        """What was chosen for each layer, and whether it stayed."""
        placed = kept.assembly.placed if kept else []
        stored = [v for item in placed for v in item.region.operands]

        def stays(row: CompressionRow) -> bool:
            return any(v.startswith(row.marks) for v in stored)

        return tuple(replace(row, kept=stays(row)) for row in self.compression.rows)

    def _count(self) -> int:
        """Nodes after canonicalization, before any rewrite."""
        return sum(len(region.nodes) for region in self.model.graph.regions())

    def _unverified(self) -> str:
        return "nothing was rewritten" if self.options.verify else "--no-verify was given"

    def _reason(self, kept: Built | None, judge: Judge) -> str:
        if kept is None:
            locked = self.lock and f"{self.lock.where} says so"
            return judge.reason or locked or next(iter(self.deadline.cut), "no rewrite applies")
        before, after = len(self.model.skeleton.graph.node), len(kept.assembly.graph.regions())
        kernels = len(kept.assembly.placed)
        kind = "kernels" if kernels > 1 else "a kernel"
        which = f", {kernels} of them {kind}" if kernels else ""
        because = self.lock.because if self.lock else gain_of(_timings(judge))
        return f"{before} nodes became {after}{which}, {because}"

    def _warnings(self, judge: Judge) -> tuple[str, ...]:
        found = [*self.notes, *self.compression.warnings, *self.told, *judge.warnings]
        found += self.deadline.cut
        found += filter(None, (runtime_conflict(),))
        if is_result(self.model):
            name = self.model.path.name
            found.append(f"{name} is a result of this tool; give it the original for a better one")
        if self.model.unknown:
            found.append(fed_too(len(self.model.unknown)))
        rejected = judge.verification.rejected if judge.verification else {}
        for label in (label for label in self.inputs.timing if label in rejected):
            found.insert(0, f"the original rejects inputs with {label}: {_brief(rejected[label])}")
        return tuple(found)

    def _groups(self, kept: Built | None, judge: Judge) -> tuple[GroupRow, ...]:
        """What was decided about each group, in graph order; those that only formed later last.

        Of a recalled decision, what was found then.
        """
        if kept is not None and self.lock and self.lock.recalled:
            return self.lock.groups
        verdicts = {v.group.key: v for v in judge.decision.verdicts} if judge.decision else {}
        final = kept.assembly.groups if kept else {}
        planned = self.assembly.groups if self.assembly else {}
        rows = []
        for key, items in {**planned, **final}.items():
            verdict, stays = verdicts.get(key), key in final
            gains = tuple(r.median for r in verdict.ratios.values()) if verdict else ()
            if verdict is None or verdict.kept != stays:
                reason = _unjudged(stays, key in planned, judge.charges.get(key, ""), kept is None)
            else:
                reason = verdict.reason
            names = tuple(name for item in items for name in item.originals)
            rule, count = items[0].region.rule, len(items)
            rows.append(GroupRow(key, rule, count, stays, reason, gains, names))
        return tuple(rows)


def _unjudged(stays: bool, planned: bool, charge: str, nothing_stays: bool) -> str:
    """Why a group that was not timed by itself stays or goes; ``charge`` is what it did wrong."""
    if stays:
        return "kept, not timed" if planned else "kept: formed when others were dropped"
    if charge:
        return f"dropped: with it, {charge}"
    return "dropped with all others" if nothing_stays else "dropped: it needed others"


def _timings(judge: Judge) -> tuple[TimingRow, ...]:
    if judge.decision is None:
        return ()
    return tuple(
        TimingRow(
            threads, label, r.a_ms, r.b_ms, r.a_min, r.b_min, r.median, r.low, r.high, r.pairs
        )
        for (threads, label), r in judge.decision.total.items()
    )


def _brief(said: str) -> str:
    """What ONNX Runtime said, without where in its sources it stood."""
    said = said.rpartition("Status Message: ")[2].rpartition(" was false. ")[2]
    return said.split("\n")[0][:200]


def _compared(kept: Built | None, model: Model) -> tuple[str, ...]:
    """What becomes of initializers that are inputs as well."""
    if kept is None or not model.guarded:
        return ()
    size = sum(weight.nbytes for weight in model.guarded.values())
    return (
        f"initializers that may be fed too: {len(model.guarded)} ({size / 1e6:.3g} MB) are "
        "compared with their defaults in every run; where they differ, the original's nodes run",
    )


def _skipped(kept: Built | None) -> tuple[str, ...]:
    """What skipping does to values that are not finite, where the kernels do not see to it."""
    return (_SKIPPED,) if kept and kept.trace.applied().get(DEAD_CHANNELS) else ()
