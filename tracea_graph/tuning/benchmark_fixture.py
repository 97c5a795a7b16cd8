"""Benchmark fixture: time candidate schedules of a problem in models with cold weights.

One library serves all problems and one data file all models.  A model replicates its kernel call
over different weights until they exceed the last-level cache, because a real model's weights are
cold too. If reading them takes no time, it replicates until a run is long enough to be timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import numpy as np

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.check.worker_process import Array, Worker
from tracea_graph.config import Environment
from tracea_graph.errors import WorkerError
from tracea_graph.ir import DType, TensorSpec, evaluate
from tracea_graph.kernels.program import LibraryContents, OpType, Program, Schedule
from tracea_graph.tuning.benchmark_model import ReplicatedModel
from tracea_graph.tuning.schedule_space import ScheduleSpace, Tunable
from tracea_graph.tuning.tuning_problem import Case, Problem, default_schedule

__all__ = ["MOST_NODES", "ModelFixture", "replica_count"]

MOST_BYTES = 256 << 20
MARGIN, LARGE_MARGIN, LARGE_ROWS = 2.0, 1.25, 64
"""Ratio of a model's weights to the cache's size; the second for at least ``LARGE_ROWS`` rows.

With many rows, weights matter less and runs are long.
"""
_BLOCK = 1 << 22
_LIMIT = 20.0
"""Seconds after which a candidate that does not answer counts as hanging."""


def _op_type(program: Program) -> OpType:
    types = [tuple(s.dtype or DType.F32 for s in p) for p in (program.inputs, program.outputs)]
    letters = "_".join("".join(d.short for d in part) for part in types)
    return OpType(f"Bench_{letters}", *types)


def _bound(spec: TensorSpec, rows: int) -> TensorSpec:
    """Return the spec of a program's tensor with ``rows`` rows."""
    return TensorSpec(spec.dtype, tuple(evaluate(d, {"m": rows}) for d in spec.shape or ()))


def _draw(random: np.random.Generator, spec: TensorSpec) -> Array:
    """Draw from N(0, 1); booleans and integers if the operand has them, any byte for bytes."""
    dims = [d for d in spec.shape or () if isinstance(d, int)]
    numbers = random.standard_normal(dims, dtype=np.float32)
    if spec.dtype is DType.BOOL:
        return numbers > 0
    if spec.dtype in (DType.U8, DType.I8):
        unsigned = random.integers(0, 256, dims, np.uint8)
        return unsigned if spec.dtype is DType.U8 else unsigned.view(np.int8)
    integers = {DType.I32: np.int32, DType.I64: np.int64}
    return numbers.astype(integers[spec.dtype]) if spec.dtype in integers else numbers


class ModelFixture(AbstractContextManager["ModelFixture"]):
    """Times schedules of tuning cases, one case at a time; use it in a ``with`` statement.

    ``backend`` must have a schedule space.  The weights that one run of a model reads exceed
    ``cache`` bytes; by default, they exceed the machine's cache.  Raises BuildError if the library
    cannot be built.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        backend: Tunable,
        level: str,
        folder: Path,
        *,
        environment: Environment,
        cache: int | None = None,
    ) -> None:
        assert backend.schedule_space is not None
        found, self._schedule_space, self._encode = (
            list(problems),
            backend.schedule_space,
            backend.encode,
        )
        self._folder, self._level = folder, level
        self._cache = self._schedule_space.cache_bytes if cache is None else cache
        programs = [self._schedule_space.bench(problem) for problem in found]
        chains = {p.epilogue.key: p.epilogue for p in found if p.epilogue}
        types = {t.name: t for t in map(_op_type, programs)}
        kernels = {n for p in programs for call in p.calls for n in backend.kernels_of(call)}
        self.library = backend.build(
            LibraryContents(list(types.values()), sorted(kernels), list(chains.values())),
            (level,),
            folder / "bench.so",
            environment,
        )
        self._worker: Worker | None = None
        self._open: dict[tuple[Schedule, int], str] = {}
        self._case: Case | None = None
        self._feeds: dict[str, Array] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def compare(
        self, case: Case, a: Schedule, b: Schedule, threads: int, pairs: int, seconds: float
    ) -> PairedTimes:
        """Time two schedules of a case alternately; return times per kernel call.

        The row limits (``max_rows``) of the schedules are ignored.  Raises WorkerError if either
        schedule cannot run; the next call starts a new worker process.
        """
        if case != self._case:
            self._prepare(case)
        try:
            worker = self._worker = self._worker or Worker(limit=_LIMIT)
            names = [self._opened(worker, case, schedule, threads) for schedule in (a, b)]
            times = worker.compare(
                names[0], names[1], self._feeds, pairs=pairs, warmup=1, seconds=seconds
            )
        except WorkerError:
            self._stop()
            raise
        count = self.model(case).count
        a_ms, b_ms = (tuple(ms / count for ms in series) for series in (times.a_ms, times.b_ms))
        return PairedTimes(a_ms, b_ms)

    def model(self, case: Case) -> ReplicatedModel:
        """Return the model of a case, without its plan."""
        problem, rows = case.problem, case.rows
        program = self._schedule_space.bench(problem)
        x, _, *others = (_bound(spec, rows) for spec in program.inputs)
        names = ["x", *(f"e{i}" for i in range(len(others) - 1)), "y0"]
        inputs = dict(zip(names, (x, *others), strict=True))
        outputs = tuple(_bound(spec, rows) for spec in program.outputs)
        large = rows >= LARGE_ROWS or problem.reuses_weights
        margin = LARGE_MARGIN if large else MARGIN
        wanted = min(self._cache * margin, MOST_BYTES)
        return ReplicatedModel(
            self.library.domain, _op_type(program).name, inputs, outputs, program.inputs[1],
            replica_count(case, self._schedule_space, self._level, wanted),
            f"{problem.dtype}.data",
        )  # fmt: skip

    def _prepare(self, case: Case) -> None:
        """Prepare feeds for a case; sessions of the last case are closed."""
        self._feeds = self.feeds(case)
        for name in self._open.values():
            if self._worker is not None:
                self._worker.close(name)
        self._open, self._case = {}, case

    def _provide(self, model: ReplicatedModel) -> None:
        """Grow a model's data file to the required size; its content repeats."""
        data, size = self._folder / model.data, model.count * model.stride
        have = data.stat().st_size if data.exists() else 0
        if have >= size:
            return
        numbers = np.random.default_rng(1).standard_normal(_BLOCK // 4, dtype=np.float32) * 0.02
        block = numbers.tobytes()
        if model.weight.dtype is DType.BF16:
            block = (numbers.view(np.uint32) >> 16).astype(np.uint16).repeat(2).tobytes()
        with data.open("ab") as file:
            for _ in range(have, size, _BLOCK):
                file.write(block)

    def write(self, case: Case, schedule: Schedule, name: str) -> Path:
        """Write the model of a case with a schedule, beside the data of its weights."""
        path, model = self._folder / f"{name}.onnx", self.model(case)
        self._provide(model)
        plan = self._encode(self._schedule_space.bench(case.problem, (schedule,)))
        path.write_bytes(model.serialize(plan))
        return path

    def feeds(self, case: Case) -> dict[str, Array]:
        """Return synthetic inputs of a case's model."""
        random, contents = np.random.default_rng(0), self._schedule_space.contents(case.problem)
        drawn = {name: _draw(random, spec) for name, spec in self.model(case).inputs.items()}
        names = list(drawn)  # those of the program's inputs but the weights, which are second
        return drawn | {names[i - 1]: held for i, held in contents.items()}

    def _opened(self, worker: Worker, case: Case, schedule: Schedule, threads: int) -> str:
        key = (schedule, threads)
        if key not in self._open:
            name = f"s{len(self._open)}"
            path = self.write(case, schedule, name)
            worker.open(name, path, self.library.path, threads=threads)
            self._open[key] = name
        return self._open[key]

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker, self._open = None, {}


MOST_NODES, _FEWEST_NODES = 128, 2
_ENOUGH_US = 20e3
"""Sufficient duration of a run in µs if weights do not matter."""
_COLD_SHARE = 0.02
"""Weights do not matter if reading them takes less than this share of the time."""


def replica_count(case: Case, schedule_space: ScheduleSpace, level: str, weights: float) -> int:
    """Return how many copies of a node a benchmark model contains.

    Their weights together have at least ``weights`` bytes, so that they do not stay in the cache.
    There are fewer copies if reading weights takes a negligible part of the time and fewer copies
    already run for long enough.
    """
    us = schedule_space.modelled_us(case, default_schedule(case), level, 1)
    size = case.problem.weight_bytes
    count = math.ceil(weights / size)
    if schedule_space.read_us(size) < _COLD_SHARE * us:
        count = min(count, math.ceil(_ENOUGH_US / us))
    return min(max(count, _FEWEST_NODES), MOST_NODES)
