"""Collecting the report of one optimization, and publishing its files."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tracea_graph.config import Options
from tracea_graph.hardware import fingerprint, profile_cpu
from tracea_graph.onnx_io import Model, write_original
from tracea_graph.pipeline.assembly import Assembly
from tracea_graph.pipeline.candidates import Built, Workshop
from tracea_graph.pipeline.inputs import Inputs
from tracea_graph.pipeline.judging import Judge
from tracea_graph.pipeline.output import Paths, publish
from tracea_graph.rewrite import Trace
from tracea_graph.views import GroupRow, Report, RuleRow, TimingRow

__all__ = ["Clock", "Reporter", "versions"]

_PACKAGES = ("onnx", "onnxruntime", "numpy", "networkx")


@dataclass
class Clock:
    """Names the step under way and adds up seconds per step."""

    progress: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    _name: str = ""
    _start: float = 0.0

    def step(self, name: str) -> None:
        """The step before ends here."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._start
        self._name, self._start = name.split(" ")[0], now
        self.progress(name)


def versions() -> dict[str, str]:
    """The tool and the packages its results depend on."""
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"tracea": importlib.metadata.version("tracea-graph"), **found}


@dataclass
class Reporter:
    """Knows the result's files and fills the report while the pipeline runs."""

    paths: Paths
    model: Model
    inputs: Inputs
    isas: tuple[str, ...]
    options: Options
    clock: Clock
    assembly: Assembly | None = None
    trace: Trace = field(default_factory=Trace)

    def planned(self, assembly: Assembly, trace: Trace) -> None:
        self.assembly, self.trace = assembly, trace

    def worth_building(self) -> bool:
        """False if no rewrite applies, or plain ONNX is all that was asked for and nothing changed."""
        return bool(self.assembly and self.assembly.placed)

    def publish(self, kept: Built | None, judge: Judge, workshop: Workshop, stage: Path) -> Report:
        """Stage the final files, write the report beside them, and move all into place."""
        name = self.paths.model.name
        if kept is None:
            written = write_original(self.model, stage / name)
            data, library = written.data, None
        else:
            data, library = self._stage(kept, workshop, stage / name)
        report = self._report(kept, judge, data)
        (stage / self.paths.report.name).write_text(report.to_json(), encoding="utf-8")
        publish(stage, self.paths, data, library)
        return report

    def _stage(self, kept: Built, workshop: Workshop, out: Path) -> tuple[Path | None, Path | None]:
        """Write the final model under its own name; its library is the one that was measured."""
        final = workshop.write(out, kept.assembly, kept.trace)
        if self.options.keep_sources is not None:
            workshop.write_sources(kept.assembly, self.options.keep_sources)
        return final.data, final.library

    # ---- the report --------------------------------------------------------------------

    def _report(self, kept: Built | None, judge: Judge, data: Path | None) -> Report:
        self.clock.step("done")
        check = judge.verification
        placed = kept.assembly.placed if kept else []
        return Report(
            input=str(self.model.path),
            output=str(self.paths.model),
            outcome="improved" if kept else "kept original",
            reason=self._reason(kept, judge),
            library=str(self.paths.library) if kept and kept.library else None,
            data=str(self.paths.model.with_name(data.name)) if data else None,
            domain=kept.built.domain if kept and kept.built else None,
            kernels=len(placed),
            nodes_before=sum(len(r.nodes) for r in self.model.graph.regions()),
            nodes_after=len(kept.assembly.graph.regions()) if kept else 0,
            status=check.status if check else "skipped",
            status_reason=check.sentence if check else self._unverified(kept),
            error=check.worst if check and check.outputs else None,
            floor=max((o.floor for o in check.outputs), default=None) if check else None,
            isas=self.isas if kept and kept.library else (),
            groups=self._groups(judge),
            rules=self._rules(),
            timings=_timings(judge) if kept else (),
            warnings=judge.decision.notes if judge.decision else (),
            bindings=self.inputs.labels,
            seconds={**self.clock.seconds, **judge.workshop.seconds},
            versions=versions(),
            machine=fingerprint(profile_cpu()),
            manifest=dict(kept.manifest) if kept else {},
        )

    def _unverified(self, kept: Built | None) -> str:
        return "--no-verify was given" if not self.options.verify else "nothing was rewritten"

    def _reason(self, kept: Built | None, judge: Judge) -> str:
        if kept is not None:
            nodes = len(kept.assembly.placed)
            what = f"{nodes} nodes run as kernels" if nodes else "the graph was simplified"
            return f"{what}, {_gain(judge)}"
        if judge.reason:
            return judge.reason
        return "no rewrite applies" if not (self.assembly and self.assembly.placed) else (
            "no rewrite was measured faster"
        )

    def _groups(self, judge: Judge) -> tuple[GroupRow, ...]:
        if self.assembly is None:
            return ()
        verdicts = {v.group.key: v for v in judge.decision.verdicts} if judge.decision else {}
        rows = []
        for key, items in self.assembly.groups.items():
            verdict = verdicts.get(key)
            kept = verdict.kept if verdict else key not in judge.guilty
            reason = verdict.reason if verdict else "dropped: wrong" if not kept else "not timed"
            names = tuple(name for item in items for name in item.originals)
            rows.append(GroupRow(key, items[0].region.rule, len(items), kept, reason, names))
        return tuple(rows)

    def _rules(self) -> tuple[RuleRow, ...]:
        applied = [RuleRow(rule, n, "applied") for rule, n in self.trace.applied().items()]
        missed = [
            RuleRow(rule, n, "missed", why) for (rule, why), n in self.trace.misses().items()
        ]
        return (*applied, *missed)


def _timings(judge: Judge) -> tuple[TimingRow, ...]:
    if judge.decision is None:
        return ()
    return tuple(
        TimingRow(
            threads, label, r.a_ms, r.b_ms, r.a_min, r.b_min, r.median, r.low, r.high, r.pairs
        )
        for (threads, label), r in judge.decision.total.items()
    )


def _gain(judge: Judge) -> str:
    rows = _timings(judge)
    if not rows:
        return "not timed"
    slowest = min(rows, key=lambda row: row.ratio)
    fastest = max(rows, key=lambda row: row.ratio)
    if len(rows) == 1:
        return f"{fastest.ratio:.2f}× as fast"
    return f"{slowest.ratio:.2f}× to {fastest.ratio:.2f}× as fast"

