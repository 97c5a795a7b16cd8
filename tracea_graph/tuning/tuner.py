"""The tuner: workloads in, drivers out; within a budget, and never the same question twice.

Cases (a problem at a row count) that the cache answers cost nothing.  The others are studied in
the order of what they are worth; what the budget does not reach keeps its defaults until the
next run goes on.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from tracea_graph.build import find_compiler
from tracea_graph.build.cache import digest
from tracea_graph.check.timing import Race
from tracea_graph.config import Environment
from tracea_graph.hardware import CpuProfile, fingerprint_hash, profile_cpu
from tracea_graph.kernels import cpu
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.program import GemmDriver
from tracea_graph.passes.lower_gemm import DRIVERS
from tracea_graph.tuning.bench_model import Stand
from tracea_graph.tuning.cache import Entry, TuningCache
from tracea_graph.tuning.jobs import by_worth, jobs_of
from tracea_graph.tuning.problem import Case, Problem, Workload, row_class
from tracea_graph.tuning.space import candidates, default_of
from tracea_graph.tuning.study import Outcome, Study, Trial

__all__ = ["CANDIDATES", "Racing", "Tuned", "Tuner", "tune"]

CANDIDATES = 8
"""Challengers per case by default."""
_UNKNOWN_CACHE = 32 << 20
"""Bytes assumed where the machine does not tell."""
_RACE_SECONDS = 5.0
"""The longest a single race may take."""
_RUNTIME = (
    "tracea_kernels.h", "runtime_core.h", "runtime_run.h", "runtime_gemm.h", "runtime_gemm_rows.h",
    "runtime_gemm_tile.h", "runtime_slots.h",
)  # fmt: skip
"""Files beside the kernels that a result depends on."""

Progress = Callable[[str], None]


class Racing(Protocol):
    """What the tuner needs of a measuring stand."""

    def race(
        self, case: Case, a: GemmDriver, b: GemmDriver, threads: int, pairs: int, seconds: float
    ) -> Race: ...


@dataclass(frozen=True)
class Tuned:
    """What became of one case; ``source`` is ``cache``, ``measured``, ``begun`` or ``default``."""

    case: Case
    driver: GemmDriver
    gain: float
    source: str


class Tuner:
    """Answers cases from the cache, or by racing drivers on ``stand()``.

    ``threads`` are the thread counts a driver must do well at, ``limit`` how many challengers
    a case may have.
    """

    def __init__(
        self,
        cache: TuningCache,
        stand: Callable[[Sequence[Problem]], AbstractContextManager[Racing]],
        *,
        isa: str,
        threads: Sequence[int],
        machine: str,
        limit: int = CANDIDATES,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        progress: Progress = lambda text: None,
    ) -> None:
        self._cache, self._stand = cache, stand
        self._isa, self._threads = isa, tuple(dict.fromkeys(threads))
        self._machine, self._limit, self._seed = machine, limit, seed
        self._clock, self._progress = clock, progress
        self._digests: dict[Chain | None, str] = {}

    def run(self, workloads: Iterable[Workload], budget: float) -> list[Tuned]:
        """Tune within ``budget`` seconds; what became of every case."""
        end = self._clock() + budget
        jobs = jobs_of(workloads, self._isa, self._threads)
        found = {job.case: self._remembered(job.case) for job in jobs}
        todo = [job for job in jobs if found[job.case].source != "cache"]
        if todo and budget > 0:
            with self._stand([job.case.problem for job in todo]) as stand:
                for job in by_worth(todo, self._isa, self._threads):
                    if self._clock() >= end:
                        break
                    found[job.case] = self._study(job.case, stand, end)
        return list(found.values())

    def _key(self, case: Case) -> str:
        threads = ",".join(map(str, self._threads))
        parts = [f"{name}={value}" for name, value in sorted(case.problem.key.items())]
        default, sources = str(default_of(case)), self._sources(case.problem.epilogue)
        return digest(self._machine, sources, self._isa, threads, str(case.rows), default, *parts)

    def _sources(self, epilogue: Chain | None) -> str:
        """A digest of all text the measured code is made of."""
        if epilogue not in self._digests:
            text = cpu.emit("chain", self._isa, epilogue).text if epilogue else ""
            self._digests[epilogue] = digest(self._common, text)
        return self._digests[epilogue]

    @cached_property
    def _common(self) -> str:
        folder = Path(cpu.__file__).resolve().parent
        headers = [(folder / name).read_bytes() for name in (*_RUNTIME, f"vec_{self._isa}.h")]
        source = cpu.emit("gemm", self._isa)
        return digest(source.text, *source.flags, *headers)

    def _remembered(self, case: Case) -> Tuned:
        """What the cache knows of a case; the default where that is nothing."""
        unknown = Tuned(case, default_of(case), 1.0, "default")
        entry = self._cache.get(self._key(case))
        if entry is None:
            return unknown
        try:
            driver, gain = GemmDriver(*entry.value["driver"]), float(entry.value["gain"])
        except (KeyError, TypeError, ValueError):  # spoilt: measure again
            return unknown
        return Tuned(case, driver, gain, "cache" if entry.final else "begun")

    def _study(self, case: Case, stand: Racing, end: float) -> Tuned:
        default = default_of(case)
        self._progress(f"{case}")

        def measure(driver: GemmDriver, threads: int, pairs: int) -> Race:
            seconds = min(_RACE_SECONDS, max(end - self._clock(), 0.05))
            return stand.race(case, default, driver, threads, pairs, seconds)

        study = Study(
            default,
            candidates(case, self._isa, self._threads, self._limit),
            self._threads,
            measure,
            lambda: self._clock() < end,
            partial(self._save, case, Outcome(default, 1.0, False, ())),
            known=self._begun(case),
            seed=self._seed,
        )
        outcome = study.run()
        self._save(case, outcome, outcome.trials)
        return Tuned(case, outcome.driver, outcome.gain, "measured" if outcome.final else "begun")

    def _begun(self, case: Case) -> list[Trial]:
        """Trials of an interrupted study."""
        entry = self._cache.get(self._key(case))
        try:
            return [Trial.from_json(t) for t in entry.evidence] if entry else []
        except (KeyError, TypeError, ValueError):
            return []

    def _save(self, case: Case, outcome: Outcome, trials: Sequence[Trial]) -> None:
        value = {"driver": astuple(outcome.driver), "gain": outcome.gain}
        evidence = [trial.to_json() for trial in trials]
        self._cache.put(self._key(case), Entry(value, evidence, outcome.final, str(case)))


def tune(
    workloads: Iterable[Workload],
    isas: Sequence[str],
    *,
    threads: Sequence[int] = (1,),
    budget_s: float = 5.0,
    environment: Environment | None = None,
    seed: int = 0,
    progress: Progress = lambda text: None,
) -> Mapping[Problem, tuple[GemmDriver, ...]]:
    """Driver tables for the problems of a model, for every row count; by problem.

    The highest of ``isas`` is tuned for.  Problems without any better driver are left out.
    Raises BuildError when there is no working compiler.  After KeyboardInterrupt all that was
    measured is in the cache.
    """
    environment, profile = environment or Environment(), profile_cpu()

    size = profile.l3 or profile.l2 or _UNKNOWN_CACHE

    loads = tuple(workloads)
    with (
        TuningCache(environment.cache / "tuning.sqlite") as cache,
        tempfile.TemporaryDirectory(prefix="tracea-tune-") as folder,
    ):
        stand = partial(
            _stand, isa=isas[-1], folder=Path(folder), environment=environment, cache=size
        )
        tuner = Tuner(
            cache,
            stand,
            isa=isas[-1],
            threads=threads,
            machine=machine_key(profile, environment),
            seed=seed,
            progress=progress,
        )
        return tables(tuner.run(loads, budget_s))


def machine_key(profile: CpuProfile, environment: Environment) -> str:
    """What a result depends on besides the problem and the kernels' text."""
    try:
        runtime = version("onnxruntime")
    except PackageNotFoundError:
        runtime = "unknown"
    compiler = find_compiler(environment)
    return digest(fingerprint_hash(profile), compiler.identity, runtime)


def tables(tuned: Iterable[Tuned]) -> dict[Problem, tuple[GemmDriver, ...]]:
    """One table per problem that has a driver better than the defaults.

    Within a row class, two tuned row counts meet at their geometric mean.
    """
    by_problem: dict[Problem, dict[int, GemmDriver]] = {}
    for t in tuned:
        by_problem.setdefault(t.case.problem, {})[t.case.rows] = t.driver
    made = {problem: _table(drivers) for problem, drivers in by_problem.items()}
    return {problem: table for problem, table in made.items() if table != DRIVERS}


def _table(drivers: Mapping[int, GemmDriver]) -> tuple[GemmDriver, ...]:
    table: list[GemmDriver] = []
    for index, default in enumerate(DRIVERS):
        points = sorted(rows for rows in drivers if row_class(rows) == index)
        for rows, following in pairwise(points):
            table.append(replace(drivers[rows], max_rows=math.isqrt(rows * following)))
        last = drivers[points[-1]] if points else default
        table.append(replace(last, max_rows=default.max_rows))
    return tuple(table)


def _stand(
    problems: Sequence[Problem], *, isa: str, folder: Path, environment: Environment, cache: int
) -> Stand:
    return Stand(problems, isa, folder, environment=environment, cache=cache)
