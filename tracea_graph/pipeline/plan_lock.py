"""Plan locks: all decisions of one optimization in a file, to be applied again without measuring.

Values are named by structural hashes.  A re-exported or retrained model therefore still fits; a
model that computes something else does not.  The lock includes the cost model's figures, which the
scheduler uses: one lock, tool version and compiler always give identical files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from tracea_graph.errors import UsageError
from tracea_graph.json_documents import read_document, to_json
from tracea_graph.onnx_io import DataFile
from tracea_graph.ops.structural_hash import graph_key, structural_keys
from tracea_graph.options import OPTIONS, Options
from tracea_graph.pipeline.candidate_models import Decisions
from tracea_graph.pipeline.output_files import ResultPaths
from tracea_graph.pipeline.planning import PlanConstraints
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.policy import CostModel, Machine
from tracea_graph.ttg import TileGraph
from tracea_graph.tuning import ScheduleSpace, ScheduleTables, Workload
from tracea_graph.tuning.serialization import schedule_to_json
from tracea_graph.version import VERSION
from tracea_graph.views import GroupRow, TimingRow, WeightRow

__all__ = ["PlanLock", "parse_lock", "read_lock"]

_ADVICE = "make a new one with --save-lock"
_TYPES = get_type_hints(Options)
_Settings = msgspec.defstruct(
    "_Settings",
    [(name, _TYPES[name], one.default) for name, one in OPTIONS.items() if one.locked],
    forbid_unknown_fields=True,
)
"""Options that the files depend on beside the decisions, with the types of their values."""
_Checked = msgspec.defstruct("_Checked", [("settings", _Settings)])


@dataclass(frozen=True)
class LockContent:
    """Content of a lock file (``docs/schema/lock.json``).

    ``settings`` are the options that the result's files depend on.  ``frozen`` maps values that no
    rule may change to the reason; ``excluded`` lists, for single rules, values that the rule may
    not change, with the reason.  ``schedules`` are those of each tuned problem; ``groups`` are the
    rows of the report.
    """

    tracea: str
    structure: str
    isas: tuple[str, ...]
    settings: Mapping[str, Any]
    machine: Machine
    bindings: Mapping[str, int]
    improved: bool
    frozen: tuple[tuple[str, str], ...]
    excluded: tuple[tuple[str, str, str], ...]
    schedules: tuple[tuple[Any, tuple[Mapping[str, int], ...]], ...]
    groups: tuple[GroupRow, ...]
    guarded: bool = False
    schema_version: Literal[4] = 4


@dataclass(frozen=True)
class PlanLock:
    """A lock as read; ``where`` names its file in messages.

    The other fields are set only if the lock comes from the decision cache:

    * ``provenance``: a clause that says when the decisions were made;
    * ``library``: SHA-256 of the verified library;
    * ``data``: description of the data file, whose path is only a name;
    * ``weight_analysis``: what was found in the model's weights;
    * ``timings``: what was measured at the time ``made``.
    """

    where: str
    content: LockContent
    provenance: str = ""
    library: str = ""
    data: DataFile | None = None
    weight_analysis: tuple[WeightRow, ...] = ()
    timings: tuple[TimingRow, ...] = ()
    made: str = ""

    @classmethod
    def of(
        cls,
        graph: TileGraph,
        options: Options,
        levels: Sequence[str],
        decisions: Decisions,
        groups: Sequence[GroupRow],
        improved: bool,
        guarded: bool = False,
    ) -> PlanLock:
        """Create a lock of the decisions about an imported graph.

        ``groups`` are the rows of the report; ``guarded`` says that callers may feed initializers
        of the graph (see :class:`~tracea_graph.pipeline.planning.InitializerGuard`).
        """
        keys = structural_keys(graph)
        frozen = [(keys.get(v, v), why) for v, why in decisions.constraints.frozen.items()]
        excluded = [
            (rule, keys.get(v, v), why)
            for rule, values in decisions.constraints.excluded.items()
            for v, why in values.items()
        ]
        schedules = [
            (problem.key, tuple(schedule_to_json(schedule) for schedule in table))
            for problem, table in decisions.schedules.items()
        ]
        return cls(
            "",
            LockContent(
                tracea=VERSION,
                structure=graph_key(graph, keys),
                isas=tuple(levels),
                settings={
                    name: getattr(options, name) for name, one in OPTIONS.items() if one.locked
                },
                machine=decisions.cost.machine,
                bindings=dict(decisions.cost.bindings),
                improved=improved,
                frozen=tuple(sorted(frozen)),
                excluded=tuple(sorted(excluded)),
                schedules=tuple(sorted(schedules, key=str)),
                groups=tuple(groups),
                guarded=guarded,
            ),
        )

    def to_json(self) -> str:
        """Return indented JSON with sorted keys."""
        return to_json(self.content)

    @property
    def cached(self) -> bool:
        """Whether the lock comes from the decision cache."""
        return bool(self.provenance)

    @property
    def because(self) -> str:
        """A clause that ends a sentence about the outcome: where the decisions come from."""
        return self.provenance or f"as {self.where} says"

    @property
    def improved(self) -> bool:
        """Whether the result has rewrites; False if the original was kept."""
        return self.content.improved

    @property
    def guarded(self) -> bool:
        """Whether initializers that are also graph inputs were made constants.

        A guard in the written model runs the original nodes if a caller feeds a different value.
        """
        return self.content.guarded

    @property
    def groups(self) -> tuple[GroupRow, ...]:
        """The report's rows about groups."""
        return self.content.groups

    @property
    def cost(self) -> CostModel:
        """The cost model that predicted gains."""
        return CostModel(self.content.machine, self.content.bindings)

    def stored(self, paths: ResultPaths) -> DataFile | None:
        """Return the data file of the earlier result if it exists and is unchanged."""
        if self.data is None:
            return None
        found = dataclasses.replace(self.data, path=paths.data(self.data.sha256))
        return found if found.intact() else None

    def apply_settings(self, options: Options) -> Options:
        """Return ``options`` with the lock's settings.

        Raises UsageError if a given option contradicts the lock.
        """
        default, found = Options(), dict[str, Any]()
        for name, locked in self.content.settings.items():
            value = tuple(locked) if isinstance(locked, list) else locked
            given = getattr(options, name)
            if given not in (value, getattr(default, name)):
                flag = f"--{OPTIONS[name].name}"
                raise UsageError(
                    f"{flag} contradicts {self.where}, which was made with {locked}; {_ADVICE}"
                )
            found[name] = value
        return dataclasses.replace(options, **found)

    def decisions(self, graph: TileGraph, levels: Sequence[str]) -> Decisions:
        """Return the lock's decisions about an imported graph, without schedules.

        Raises UsageError if the graph has other computations than the locked one, or if the
        machine's instruction sets differ.
        """
        if tuple(levels) != self.content.isas:
            had, have = ", ".join(self.content.isas), ", ".join(levels)
            raise UsageError(
                f"{self.where} was made for {had}, but kernels here are for {have}; {_ADVICE}"
            )
        keys = structural_keys(graph)
        if graph_key(graph, keys) != self.content.structure:
            raise UsageError(
                f"{self.where} does not fit: it was made for a model that computes something "
                f"else; {_ADVICE}"
            )
        values = {key: value for value, key in keys.items()}
        frozen = {values.get(key, key): why for key, why in self.content.frozen}
        excluded: dict[str, dict[str, str]] = {}
        for rule, key, why in self.content.excluded:
            excluded.setdefault(rule, {})[values.get(key, key)] = why
        return Decisions(self.cost, PlanConstraints(frozen, excluded), {})

    def check(self, assembly: Assembly) -> None:
        """Raise UsageError unless the assembly has exactly the groups that the lock keeps."""
        if not self.improved:
            return
        found = {key: len(items) for key, items in assembly.groups.items()}
        wanted = {g.group: g.count for g in self.groups if g.kept}
        if found != wanted:
            odd = next(k for k in {**wanted, **found} if found.get(k) != wanted.get(k))
            raise UsageError(
                f"{self.where} was made by tracea-graph {self.content.tracea} with "
                f"{wanted.get(odd, 0)} × {odd}; version {VERSION} has "
                f"{found.get(odd, 0)} × {odd}; {_ADVICE}"
            )

    def schedules(
        self, workloads: Sequence[Workload], schedule_space: ScheduleSpace | None
    ) -> ScheduleTables:
        """Return the lock's tuned schedules for the problems in ``workloads``.

        Raises UsageError for a schedule that the backend does not have.
        """
        if schedule_space is None:
            return {}
        try:
            tables = {
                json.dumps(key, sort_keys=True): tuple(
                    map(schedule_space.schedule_from_json, table)
                )
                for key, table in self.content.schedules
            }
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the plan lock {self.where} is malformed: `$.schedules` has a schedule "
                f"that this backend does not know; {_ADVICE}"
            ) from error
        problems = {json.dumps(w.problem.key, sort_keys=True): w.problem for w in workloads}
        return {problem: tables[key] for key, problem in problems.items() if key in tables}


def read_lock(path: Path) -> PlanLock:
    """Read a lock file.  Raises UsageError if it is not a lock of this version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no plan lock {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a plan lock: {error}") from error
    return parse_lock(content, path)


def parse_lock(data: Any, path: str | Path) -> PlanLock:
    """Parse a lock from a file's data.  Raises UsageError if the data is not a lock."""
    content = read_document(LockContent, data, f"the plan lock {path}", _ADVICE)
    try:
        msgspec.convert({"settings": content.settings}, _Checked)
        lock = PlanLock(str(path), content)
        lock.apply_settings(Options())
        assert lock.cost
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise UsageError(f"the plan lock {path} is malformed: {error}; {_ADVICE}") from error
    return lock
