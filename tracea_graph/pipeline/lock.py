"""Plan locks: all decisions of one optimization in a file, to be applied again without measuring.

    {"format": 3, "structure": …, "isas": […], "settings": {…}, "machine": {…}, "bindings": {…},
     "improved": true, "guarded": false, "frozen": [[key, why]…], "excluded": […],
     "schedules": […], "groups": […]}

Values are named by structural hashes, so a model that was exported or trained anew still fits; a
model that computes something else does not.  The cost model's figures are part of the lock, for
the scheduler goes by them: the same lock, tool and compiler give the same files, byte by byte.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import DataFile
from tracea_graph.ops.structure import graph_key, value_keys
from tracea_graph.options import OPTIONS, Options
from tracea_graph.pipeline.assembly import Assembly
from tracea_graph.pipeline.candidates import Decisions
from tracea_graph.pipeline.output import Paths
from tracea_graph.pipeline.planning import Constraints
from tracea_graph.policy import CostModel, Machine
from tracea_graph.ttg import TileGraph
from tracea_graph.tuning import ScheduleSpace, ScheduleTables, Workload
from tracea_graph.tuning.serialization import schedule_to_json
from tracea_graph.version import VERSION
from tracea_graph.views import GroupRow, WeightRow

__all__ = ["Lock", "parse_lock", "read_lock"]

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are(value: Any, check: Callable[[Any], object]) -> bool:
    """Whether a value is a list of what passes."""
    return isinstance(value, list) and all(map(check, value))


def _are_texts(value: Any) -> bool:
    return _are(value, _is_text)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_schedule(value: Any) -> bool:
    """Whether a value is numbers by name; what they mean, a backend knows."""
    return isinstance(value, dict) and all(type(number) is int for number in value.values())


def _like(default: Any) -> Check:
    """Whether a value is what an option with such a default may be."""
    if default is None:
        return lambda value: value is None or _is_number(value)
    kinds = {str: _is_text, bool: _is_flag, tuple: _are_texts, float: _is_number}
    return kinds[type(default)]


def _fits(
    found: Mapping[str, Any], checks: Mapping[str, Check], names: Collection[str] | None = None
) -> bool:
    """Whether what stands under these names, all by default, passes its check."""
    return all(checks[name](found[name]) for name in (checks if names is None else names))


_FORMAT = 3
_GROUP = MappingProxyType(
    {
        "group": _is_text, "rule": _is_text, "count": lambda value: type(value) is int,
        "kept": _is_flag, "reason": _is_text, "originals": _are_texts,
        "gains": lambda found: _are(found, _is_number),
    }
)  # fmt: skip
_SETTINGS = MappingProxyType(
    {keyword: _like(one.default) for keyword, one in OPTIONS.items() if one.locked}
)
"""Options the files depend on, beside the decisions, and what their values are."""
_CONTENT = MappingProxyType(
    {
        "tracea": _is_text,
        "structure": _is_text,
        "isas": _are_texts,
        "settings": lambda found: _fits(found, _SETTINGS, found.keys()),
        "machine": lambda found: all(_is_flag(v) or _is_number(v) for v in found.values()),
        "bindings": lambda found: all(type(value) is int for value in found.values()),
        "improved": _is_flag,
        "frozen": lambda found: _are(found, lambda row: _are_texts(row) and len(row) == 2),
        "excluded": lambda found: _are(found, lambda row: _are_texts(row) and len(row) == 3),
        "schedules": lambda found: _are(found, lambda row: _are(row[1], _is_schedule)),
        "groups": lambda found: _are(found, lambda group: _fits(group, _GROUP)),
    }
)
"""What :meth:`Lock.of` writes; a check may also raise where a value is something else."""
_ADVICE = "make a new one with --save-lock"


@dataclass(frozen=True)
class Lock:
    """A lock's content as read; ``where`` is the file, for messages.

    ``provenance`` says when an equal earlier run decided, if the lock is not the user's; then
    ``library`` is the SHA-256 of the library that was verified, ``data`` what was in the data
    file, whose path is its name only, ``weight_analysis`` what it found in the model's weights.
    """

    where: str
    content: Mapping[str, Any]
    provenance: str = ""
    library: str = ""
    data: DataFile | None = None
    weight_analysis: tuple[WeightRow, ...] = ()

    @classmethod
    def of(
        cls,
        graph: TileGraph,
        options: Options,
        levels: Sequence[str],
        decisions: Decisions,
        groups: Sequence[Mapping[str, Any]],
        improved: bool,
        guarded: bool = False,
    ) -> Lock:
        """What was decided about an imported graph; ``groups`` are the report's rows, ``guarded``
        says that initializers of the graph may be fed (see ``guarding``)."""
        keys = value_keys(graph)
        frozen = [[keys.get(v, v), why] for v, why in decisions.constraints.frozen.items()]
        excluded = [
            [rule, keys.get(v, v), why]
            for rule, values in decisions.constraints.excluded.items()
            for v, why in values.items()
        ]
        schedules = [
            [problem.key, [schedule_to_json(schedule) for schedule in table]]
            for problem, table in decisions.schedules.items()
        ]
        return cls(
            "",
            {
                "format": _FORMAT,
                "tracea": VERSION,
                "structure": graph_key(graph, keys),
                "isas": list(levels),
                "settings": {name: getattr(options, name) for name in _SETTINGS},
                "machine": dataclasses.asdict(decisions.cost.machine),
                "bindings": dict(decisions.cost.bindings),
                "improved": improved,
                "guarded": guarded,
                "frozen": sorted(frozen),
                "excluded": sorted(excluded),
                "schedules": sorted(schedules, key=str),
                "groups": list(groups),
            },
        )

    def to_json(self) -> str:
        """Indented JSON with sorted keys."""
        return json.dumps(self.content, indent=1, sort_keys=True, default=str) + "\n"

    @property
    def cached(self) -> bool:
        """True if the lock comes from the decision cache."""
        return bool(self.provenance)

    @property
    def because(self) -> str:
        """The end of a sentence that begins with what was done."""
        return self.provenance or f"as {self.where} says"

    @property
    def improved(self) -> bool:
        """False if the original was kept."""
        return bool(self.content["improved"])

    @property
    def guarded(self) -> bool:
        """True if initializers that may be fed are constants of the graph, behind a guard."""
        return bool(self.content.get("guarded", False))

    @property
    def groups(self) -> tuple[GroupRow, ...]:
        """What was found about each group."""
        names = {field.name for field in dataclasses.fields(GroupRow)}
        rows = ({k: v for k, v in g.items() if k in names} for g in self.content["groups"])
        found = (GroupRow(**row) for row in rows)
        return tuple(
            dataclasses.replace(row, gains=tuple(row.gains), originals=tuple(row.originals))
            for row in found
        )

    @property
    def cost(self) -> CostModel:
        """What gains were predicted with."""
        return CostModel(Machine(**self.content["machine"]), self.content["bindings"])

    def stored(self, paths: Paths) -> DataFile | None:
        """The data file of the earlier result, if it is in place and as it was."""
        if self.data is None:
            return None
        found = dataclasses.replace(self.data, path=paths.data(self.data.sha256))
        return found if found.intact() else None

    def apply_settings(self, options: Options) -> Options:
        """The options it was made with.

        Raises UsageError if one that was given contradicts it.
        """
        default, found = Options(), dict[str, Any]()
        for name, locked in self.content["settings"].items():
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
        """Its decisions about an imported graph, but for the schedules.

        Raises UsageError if the graph computes something else, or the machine has other
        instruction sets.
        """
        if list(levels) != self.content["isas"]:
            had, have = ", ".join(self.content["isas"]), ", ".join(levels)
            raise UsageError(
                f"{self.where} was made for {had}, and kernels here are for {have}; {_ADVICE}"
            )
        keys = value_keys(graph)
        if graph_key(graph, keys) != self.content["structure"]:
            raise UsageError(
                f"{self.where} does not fit: the model computes something else than the one it "
                f"was made for; {_ADVICE}"
            )
        values = {key: value for value, key in keys.items()}
        frozen = {values.get(key, key): why for key, why in self.content["frozen"]}
        excluded: dict[str, dict[str, str]] = {}
        for rule, key, why in self.content["excluded"]:
            excluded.setdefault(rule, {})[values.get(key, key)] = why
        return Decisions(self.cost, Constraints(frozen, excluded), {})

    def check(self, assembly: Assembly) -> None:
        """Raise UsageError unless the assembly has just the groups that were kept."""
        if not self.improved:
            return
        found = {key: len(items) for key, items in assembly.groups.items()}
        wanted = {g["group"]: g["count"] for g in self.content["groups"] if g["kept"]}
        if found != wanted:
            odd = next(k for k in {**wanted, **found} if found.get(k) != wanted.get(k))
            raise UsageError(
                f"{self.where} was made by tracea-graph {self.content['tracea']} with "
                f"{wanted.get(odd, 0)} × {odd}, and {VERSION} makes {found.get(odd, 0)}; {_ADVICE}"
            )

    def schedules(
        self, workloads: Sequence[Workload], schedule_space: ScheduleSpace | None
    ) -> ScheduleTables:
        """Its tuned schedules for the problems that are left.

        Raises UsageError for a schedule that the backend of these schedule_space does not have.
        """
        if schedule_space is None:
            return {}
        try:
            tables = {
                json.dumps(key, sort_keys=True): tuple(
                    map(schedule_space.schedule_from_json, table)
                )
                for key, table in self.content["schedules"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{self.where} is no plan lock: 'schedules' is malformed in it; {_ADVICE}"
            ) from error
        problems = {json.dumps(w.problem.key, sort_keys=True): w.problem for w in workloads}
        return {problem: tables[key] for key, problem in problems.items() if key in tables}


def read_lock(path: Path) -> Lock:
    """A lock from its file.  Raises UsageError if it is none, or another version's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no plan {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no plan lock: {error}") from error
    return parse_lock(content, path)


def parse_lock(content: Any, path: str | Path) -> Lock:
    """A lock from what its file holds.  Raises UsageError if it is none."""
    if not isinstance(content, dict) or "format" not in content:
        raise UsageError(f"{path} is no plan lock; {_ADVICE}")
    if content["format"] != _FORMAT:
        raise UsageError(f"{path} {_other_format(content['format'])}; {_ADVICE}")
    if missing := _CONTENT.keys() - content.keys():
        raise UsageError(f"{path} is no plan lock: it lacks {', '.join(sorted(missing))}")
    for name, check in _CONTENT.items():
        if not _passes(check, content[name]):
            raise UsageError(f"{path} is no plan lock: {name!r} is malformed in it; {_ADVICE}")
    lock = Lock(str(path), content)
    try:
        lock.apply_settings(Options())
        assert lock.cost
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} is no plan lock: {error}") from error
    return lock


def _other_format(found: object) -> str:
    """What is wrong with a lock of a format other than :data:`_FORMAT`."""
    if isinstance(found, int) and found < _FORMAT:
        return f"was written by an older version (lock format {found}, this one reads {_FORMAT})"
    return f"has lock format {found}, and this version reads {_FORMAT}"


def _passes(check: Check, value: Any) -> bool:
    try:
        return check(value)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        return False
