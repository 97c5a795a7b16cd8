"""Build candidates: complete models on disk, each without some groups of rewrites."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tracea_graph.check.rewrite_selection import RewriteGroup
from tracea_graph.errors import OutOfTime, UsageError
from tracea_graph.kernels.program import Schedule
from tracea_graph.kernels.rule_names import RuleNames
from tracea_graph.onnx_io import (
    BACKEND_KEY,
    PLATFORMS_KEY,
    DataFile,
    DataPool,
    Model,
    write,
    write_original,
)
from tracea_graph.options import Options
from tracea_graph.passes import CLUSTERING, REVERTIBLE
from tracea_graph.pipeline.library_builder import LibraryBuilder
from tracea_graph.pipeline.planning import (
    STANDARD_RULES,
    PlanConstraints,
    Planner,
    ScheduledGraph,
    guard_condition_nodes,
    guards_of,
)
from tracea_graph.pipeline.result_assembly import Assembly, untuned_ops_us
from tracea_graph.pipeline.step_timer import Deadline
from tracea_graph.policy import CostModel
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.target import Backend, tile_setting_names
from tracea_graph.toolchain import Counted, Library, ignore_progress
from tracea_graph.tuning import (
    CaseFinished,
    Event,
    ScheduleTables,
    TuningOptions,
    TuningStarted,
    schedule_tables,
    tune,
)
from tracea_graph.tuning.schedule_hints import hinted_schedule, parse_hints
from tracea_graph.tuning.tuning_problem import Case

__all__ = [
    "EVERY_REWRITE",
    "TUNING_SHARE",
    "BuiltModel",
    "CandidateBuilder",
    "Decisions",
    "write_float32_reference",
]


EVERY_REWRITE = "every rewrite"
"""Key that drops all rewrites: the candidate without it consists of the model's own operators."""
_PLANNING_SHARE = 0.5
"""Share of the budget for the first plan; the rest is needed to verify and time it."""
TUNING_SHARE = {"quick": 0.0, "default": 0.06, "thorough": 0.15}
"""Share of the budget for tuning, by effort; at 0, schedules found by earlier runs still apply."""


@dataclass(frozen=True)
class BuiltModel:
    """A model on disk, with the assembly, trace and library it was made from."""

    model: Path
    data: Path | None
    library: Path | None
    assembly: Assembly
    trace: DecisionTrace
    built: Library | None
    stored: DataFile | None = None

    def levels(self, every: tuple[str, ...]) -> tuple[str, ...]:
        """Return the levels that the library has code for, lowest first; ``every`` if unknown."""
        return self.built.levels if self.built else every

    @property
    def runnable(self) -> Path | None:
        """The library if this machine can load it; None if function bodies run instead."""
        return self.library if self.built is None or self.built.runs_here else None


@dataclass(frozen=True)
class Decisions:
    """Everything needed to repeat a plan: cost model, constraints and tuned schedules."""

    cost: CostModel
    constraints: PlanConstraints
    schedules: ScheduleTables


def write_float32_reference(model: Model, backend: Backend, folder: Path) -> Model:
    """Write a half-precision model as float32, and return the model with this file as reference.

    A model without half-precision arithmetic is returned as it is.
    """
    if not model.widened:
        return model
    plain = Assembly(model.graph, backend)
    folder.mkdir(exist_ok=True)
    out = folder / "float32.onnx"
    write(model, plain.nodes(""), plain.weights(), out)
    return replace(model, float32_form=out)


class _CasesCounted:
    """Listener of a tuner that counts finished cases."""

    def __init__(self, counted: Counted) -> None:
        self._counted, self._done, self._total = counted, 0, 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, TuningStarted):
            self._total = len(event.tasks)
        elif isinstance(event, CaseFinished):
            self._done += 1
        if self._total:
            self._counted(self._done, self._total)


class CandidateBuilder:
    """Plan, build and write candidates of one model in a scratch folder.

    A group of rewrites is dropped by planning again with the operators it covers frozen, as if the
    group had never been proposed.  A group that only stores weights in another form is dropped by
    excluding its rule for these operators, so that it is compared with the plain form.  With
    ``locked`` decisions, every plan follows them.
    """

    def __init__(
        self,
        model: Model,
        options: Options,
        planner: Planner,
        libraries: LibraryBuilder,
        folder: Path,
        locked: Decisions | None = None,
    ) -> None:
        self.model, self.options, self.planner = model, options, planner
        self.libraries, self.folder = libraries, folder
        self.seconds: dict[str, float] = {}
        self.wrong: set[str] = set()
        """Groups that were dropped for their results, not for their speed."""
        self.links = True
        """Whether plans hold what the cost model chose to separate calls on several threads."""
        self._frozen: dict[str, frozenset[str]] = {}
        self._rules: dict[str, tuple[str, ...]] = {}
        self._precision_keys: dict[str, tuple[str, ...]] = {}
        self._count = 0
        self._locked = locked
        self._schedules: ScheduleTables = {}
        self._plans: dict[frozenset[str], tuple[Assembly, ScheduledGraph]] = {}
        self._pool = DataPool(folder / "weights.data")
        self._guards = guards_of(model, planner.backend)
        self.names = planner.backend.rules if options.custom_ops else STANDARD_RULES

    def begin(self, deadline: Deadline) -> tuple[Assembly, DecisionTrace]:
        """Plan the model with all rewrites; with none if that exceeds planning's budget share."""
        seconds = _PLANNING_SHARE * self.options.budget
        try:
            with deadline.within(seconds):
                return self.plan()
        except OutOfTime:
            deadline.note(f"planning was not finished in {seconds:.3g} s, its share of the budget")
            graph = self.model.graph
            nothing = Assembly(graph, self.planner.backend)
            empty = ScheduledGraph(graph, DecisionTrace(), PlanConstraints({}, {}))
            self._plans[frozenset()] = nothing, empty
            return self.plan()

    def plan(self, dropped: frozenset[str] = frozenset()) -> tuple[Assembly, DecisionTrace]:
        """Return the assembly without the dropped groups, and its trace.  Raises OutOfTime."""
        assembly, plan = self._planned(dropped)
        tuned = assembly.tuned(self._schedules)
        return (tuned if self.links else tuned.unlinked()), plan.trace

    def decisions(self, dropped: frozenset[str]) -> Decisions:
        """Return the decisions that reproduce the plan without the dropped groups."""
        plan = self._planned(dropped)[1]
        cost = self.planner.cost
        if not self.links:
            cost = replace(cost, machine=cost.machine.alone)
        return Decisions(cost, plan.constraints, self._schedules)

    def _planned(self, dropped: frozenset[str]) -> tuple[Assembly, ScheduledGraph]:
        if dropped not in self._plans:
            self._plans[dropped] = self._plan(dropped)
        return self._plans[dropped]

    def _plan(self, dropped: frozenset[str]) -> tuple[Assembly, ScheduledGraph]:
        if EVERY_REWRITE in dropped:
            self._frozen[EVERY_REWRITE] = frozenset(self._order())
        frozen = {v: self._why(g) for g in dropped - self._rules.keys() for v in self._frozen[g]}
        excluded: dict[str, dict[str, str]] = {}
        for group in dropped & self._rules.keys():
            for rule in self._rules[group]:
                frozen_here = dict.fromkeys(self._frozen[group], self._why(group))
                excluded.setdefault(rule, {}).update(frozen_here)
        assembly, plan = self._fitting(frozen, excluded)
        if self._locked is None and self._add_missed(dropped, plan):
            return self._plan(dropped)
        for group, items in assembly.groups.items():
            values = (v for i in items for n in i.region.nodes for v in n.outputs if v)
            self._frozen[group] = self._frozen.get(group, frozenset()) | frozenset(values)
            rule = items[0].region.rule if group == items[0].group else self.names.row_tiling[0]
            if rule in (*REVERTIBLE, *self.names.revertible):
                self._rules[group] = _with_fallbacks(rule, self.names)
        return assembly, plan

    def _add_missed(self, dropped: frozenset[str], plan: ScheduledGraph) -> bool:
        """Let dropped keys of a whole rule cover its sites in a plan too; return if any is new.

        Without some rules, others make values that the plan with all rules does not have.
        """
        found = False
        for key in dropped.intersection(
            k for keys in self._precision_keys.values() for k in keys[-1:]
        ):
            missed = plan.trace.sites(self._rules[key]) - self._frozen[key]
            self._frozen[key] |= missed
            found = found or bool(missed)
        return found

    def _order(self) -> dict[str, int]:
        """Return the positions in the model of the operators that compute its values."""
        regions = enumerate(self.model.graph.regions())
        return {v: i for i, r in regions for n in r.nodes for v in n.outputs if v}

    def _why(self, group: str) -> str:
        """Return why a group was dropped."""
        wrong = group.partition(" at ")[0] in self.wrong
        return "its result was out of tolerance" if wrong else "measured no faster"

    def _fitting(
        self, frozen: dict[str, str], excluded: dict[str, dict[str, str]]
    ) -> tuple[Assembly, ScheduledGraph]:
        """Plan until every program fits the runtime's limits: split or drop oversized ones."""
        if self._locked is not None:
            made = partial(self.planner.plan_under, self._locked.constraints)
            return self._guarded(*self.planner.assembled(made))
        while True:
            made = partial(self.planner.plan, frozen, excluded)
            assembly, plan = self._guarded(*self.planner.assembled(made))
            if not assembly.unfit:
                return assembly, plan
            for region, why in assembly.unfit:
                joins = region.rule in (*self.names.row_tiling[:1], *CLUSTERING)
                values = (v for n in region.nodes for v in n.outputs if v)
                (excluded.setdefault(region.rule, {}) if joins else frozen).update(
                    dict.fromkeys(values, why)
                )

    def _guarded(
        self, assembly: Assembly, plan: ScheduledGraph
    ) -> tuple[Assembly, ScheduledGraph]:
        """Add the guards of initializers that were planned as constants."""
        if assembly.placed:
            assembly.types |= {guard.type.name: guard.type for guard in self._guards}
            for call in (call for guard in self._guards for call in guard.program.calls):
                assembly.need(call)
        return assembly, plan

    def parts(self, group: str) -> tuple[str, ...]:
        """Return keys that drop a single step of a group each, in graph order.

        Empty if the group has one step.  Dropping a step splits the program that contained it.
        """
        values = self._frozen[group]
        graph = self.planner.plan(unclustered=True).graph
        found = {}
        for region in (r for r in graph.regions() if r.fused):
            written = frozenset(v for n in region.nodes for v in n.outputs if v)
            if written <= values:
                key = f"{group} at {region.results[0]}"
                found[key] = written
                if region.rule in (*REVERTIBLE, *self.names.revertible):
                    self._rules[key] = _with_fallbacks(region.rule, self.names)
        if len(found) < 2:
            return ()
        self._frozen |= found
        return tuple(found)

    def precision_keys(self, rule: str) -> tuple[str, ...]:
        """Keys that drop a precision-lowering rule in its first region, its first two, and so on.

        Regions of rules that it replaces, or that apply on top of it, count too.  Regions of
        the same nodes, such as a product and the quantization of its operand, count once.  The
        last key drops the rule everywhere.
        """
        if rule in self._precision_keys:
            return self._precision_keys[rule]
        names = self.names
        further = (r for r, of in names.further.items() if of == rule)
        keys, values = list[str](), frozenset[str]()
        for result, own in self._lowered({rule, *names.replaced(rule), *further}):
            if keys and own <= values:
                keys.pop()
            values |= own
            keys.append(f"{rule} up to {result}")
            self._frozen[keys[-1]], self._rules[keys[-1]] = values, (rule,)
        self._precision_keys[rule] = tuple(keys)
        return tuple(keys)

    def _lowered(self, rules: Set[str]) -> list[tuple[str, frozenset[str]]]:
        """Return a result and all values of each region that rules made, in the model's order.

        A rule is excluded by values that it found in the graph.  One that no region of the plan
        writes any longer, such as the result of a convolution past which a transpose moved, has
        an entry of its own.
        """
        order, plan = self._order(), self.planner.plan(unclustered=True)
        sites = frozenset(plan.trace.sites(rules))
        made = [
            (r.results[0], frozenset(v for n in r.nodes for v in n.outputs if v))
            for r in plan.made_by(rules)
        ]
        known = sites | order.keys()
        made = [(result, values) for result, values in made if values & known]
        gone = sites.difference(*(values for _, values in made))
        made += ((value, frozenset((value,))) for value in sorted(gone))

        def position(item: tuple[str, frozenset[str]]) -> int:
            return max((order[v] for v in item[1] if v in order), default=len(order))

        return sorted(made, key=position)

    def rewrite_groups(self, built: BuiltModel) -> list[RewriteGroup]:
        """Return the groups of a candidate with their predicted gains, as they are timed."""
        planner, graph = self.planner, built.assembly.graph
        if not built.assembly.groups:
            return [RewriteGroup("plain ONNX", (), 0.0)]
        return [
            RewriteGroup(
                key,
                tuple(item.region.id for item in items),
                sum(planner.gain(graph, item.region, key != item.group) for item in items),
            )
            for key, items in built.assembly.groups.items()
        ]

    def tile_sizes(self, group: str) -> tuple[str, ...]:
        """Keys that drop the largest row tiles of a group, then the two largest, and so on.

        Ends where no smaller tiles would remain; empty for groups that are not row tilings.
        """
        if self._rules.get(group) != self.names.row_tiling:
            return ()
        keys, known = [], {self._row_tiles(group, frozenset())}
        for i in range(1, len(self.names.row_tiling)):
            key = f"{group}, longest {i}"
            self._frozen[key], self._rules[key] = self._frozen[group], self.names.row_tiling[:i]
            row_tiles = self._row_tiles(group, frozenset((key,)))
            if row_tiles and row_tiles not in known:
                known.add(row_tiles)
                keys.append(key)
        return tuple(keys)

    def _row_tiles(self, group: str, dropped: frozenset[str]) -> tuple[object, ...]:
        """Row tiles of a group's programs."""
        items = self._planned(dropped)[0].groups.get(group, ())
        return tuple(item.region.params.row_tiles for item in items)

    def tune(
        self,
        bindings: Sequence[Mapping[str, int]],
        measure: bool = True,
        deadline: Deadline | None = None,
        counted: Counted = ignore_progress,
    ) -> None:
        """Find better schedules for the whole model; later plans use them.

        Takes a share of the budget, and ends with the ``deadline``.  If not ``measure``, only
        schedules found by earlier runs are used, and UsageError is raised if they differ from the
        ones in use.
        """
        start, deadline = time.perf_counter(), deadline or Deadline()
        assembly, _ = self.plan()
        options = self.options
        share = TUNING_SHARE[options.effort] if measure and options.keep == "faster" else 0.0
        tuning = TuningOptions(
            self.libraries.target.levels,
            options.thread_counts,
            min(share * options.budget, deadline.left),
            untuned_ops_us(assembly.graph, self.planner.cost) * len(bindings),
            seed=options.seed,
            storage=options.storage,
            selective=options.effort != "thorough",
            weight_bytes=None if options.storage else assembly.weight_bytes,
        )
        loads = assembly.workloads(bindings)
        tuned = tune(
            loads, tuning, self.planner.backend, options.environment, pin=self._prescribed(),
            building=deadline.suspended, listen=_CasesCounted(counted),
        )  # fmt: skip
        found = schedule_tables(tuned)
        if not measure and dict(self._schedules) != found:
            raise UsageError("better schedules have been found since")
        self._schedules = found
        self._spent("tune", start)

    def _prescribed(self) -> Callable[[Case], Schedule | None]:
        """Return a function that gives a case the schedule which the options ask for, if any."""
        hints = parse_hints(self.options.patterns, tile_setting_names())
        runs, space = self.options.concurrent_runs, self.planner.backend.schedule_space

        def prescribed(case: Case) -> Schedule | None:
            found = hinted_schedule(hints, case)
            if found is None and runs > 1 and space is not None:
                return space.concurrent_schedule(case, runs)
            return found

        return prescribed

    @property
    def schedules(self) -> ScheduleTables:
        """Schedules of the current plan."""
        return self._schedules

    def use(self, schedules: ScheduleTables) -> None:
        """Let later plans use schedules that were found earlier."""
        self._schedules = schedules

    def build(
        self,
        dropped: frozenset[str] = frozenset(),
        out: Path | None = None,
        earlier: DataFile | None = None,
        levels: Sequence[str] | None = None,
    ) -> BuiltModel:
        """Build the candidate without the groups ``dropped``, as it will be published at ``out``.

        ``earlier`` is an existing data file to reuse; ``levels`` are the library's instruction
        sets, by default all of the target.  Without ``out`` the candidate is written to the
        scratch folder, where all candidates share one file of weights.
        """
        if out is not None:
            return self.write(out, *self.plan(dropped), earlier=earlier)
        self._count += 1
        self.folder.mkdir(exist_ok=True)
        out = self.folder / f"candidate{self._count}.onnx"
        return self.write(out, *self.plan(dropped), pool=self._pool, levels=levels)

    def write(
        self, out: Path, assembly: Assembly, trace: DecisionTrace,
        pool: DataPool | None = None, earlier: DataFile | None = None,
        levels: Sequence[str] | None = None,
    ) -> BuiltModel:  # fmt: skip
        """Build the library, unless nothing was fused, and write the model at ``out``.

        If nothing was fused in a guarded model, the original is written, without a guard.
        """
        if self._guards and not assembly.placed:
            plain = write_original(self.model.path, out)
            return BuiltModel(plain.model, plain.data, None, assembly, trace, None)
        library = None
        if assembly.types:
            start = time.perf_counter()
            library = self.libraries.library(assembly, out.with_suffix(".so"), levels)
            self._spent("build", start)
        start = time.perf_counter()
        domain = library.domain if library else ""
        nodes = assembly.nodes(domain)
        guards = [*{guard.type.name: guard.function for guard in self._guards}.values()]
        required = self.options.require_library
        fallback = library.fallback if library else ""
        bodies = [*assembly.functions(fallback, not required), *(() if required else guards)]
        written = write(
            self.model,
            nodes,
            assembly.weights(),
            out,
            functions=bodies,
            guard=guard_condition_nodes(self._guards, domain),
            domain=domain,
            metadata=_metadata(library, assembly.backend),
            node_metadata=assembly.metadata(nodes, domain),
            single_file=self.options.single_file and pool is None,
            pool=pool,
            earlier=earlier,
        )
        self._spent("write", start)
        return BuiltModel(
            written.model, written.data, library.path if library else None, assembly, trace,
            library, written.stored,
        )  # fmt: skip

    def write_sources(self, assembly: Assembly, folder: Path) -> None:
        """Write the generated sources of an assembly's library for inspection."""
        folder.mkdir(parents=True, exist_ok=True)
        target = self.libraries.target
        for source in target.backend.sources(assembly.contents, target.levels):
            (folder / f"{source.symbol}.cpp").write_text(source.text, encoding="utf-8")

    def _spent(self, step: str, start: float) -> None:
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


def _with_fallbacks(rule: str, names: RuleNames) -> tuple[str, ...]:
    """Return a rule and its fallbacks; a region stays plain only without all of them."""
    if rule in names.row_tiling[:1]:
        return names.row_tiling
    first = names.further.get(rule, rule)
    return tuple(dict.fromkeys((rule, first, *names.replacements(first))))


def _metadata(library: Library | None, backend: Backend) -> dict[str, str]:
    if library is None:
        return {}
    platforms = " ".join(f"{each.platform}={each.sha256}" for each in library.all)
    return {
        "tracea.library.sha256": library.sha256,
        "tracea.library.domain": library.domain,
        BACKEND_KEY: backend.name,
        **({PLATFORMS_KEY: platforms} if library.platform else {}),
        "tracea.library.isas": " ".join(library.levels),
        "tracea.library.onnxruntime": ">=1.17",
    }
