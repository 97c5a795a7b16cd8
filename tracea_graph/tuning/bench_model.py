"""The measuring stand: candidates of a problem as models over cold weights, raced in a worker.

One library serves all problems and one data file all models.  A model repeats its product over
different weights until they exceed the last-level cache, for that is how a real model meets them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import numpy as np

from tracea_graph.build import build_library
from tracea_graph.check.timing import Race
from tracea_graph.check.worker import Array, Worker
from tracea_graph.config import Environment
from tracea_graph.errors import WorkerError
from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.kernels.plan import encode
from tracea_graph.kernels.table import OpType
from tracea_graph.ops.gemm import LAYOUTS, PANEL
from tracea_graph.ops.program import Buffer, Call, GemmDriver, Program, View
from tracea_graph.tuning.problem import Case, Problem
from tracea_graph.tuning.wire_model import Repeated

__all__ = ["Stand", "bench_program"]

MOST_BYTES = 256 << 20
MOST_NODES = 128
MARGIN, LARGE_MARGIN, LARGE_ROWS = 2.0, 1.25, 64
"""Weights of a model over the cache's size; less where weights matter less and runs take long."""
_BLOCK = 1 << 22
_LIMIT = 20.0
"""Seconds until a candidate that does not answer counts as hung."""


def weight_shape(problem: Problem) -> tuple[int, ...]:
    if problem.layout == "panels":
        return (-(-problem.n // PANEL), problem.k, PANEL)
    return (problem.k, problem.n)


def _extra_shapes(problem: Problem, rows: Extent) -> list[tuple[Extent, ...]]:
    shapes: Mapping[str, tuple[Extent, ...]] = {
        "full": (rows, problem.n), "row": (problem.n,), "col": (rows,), "scalar": (1,)
    }  # fmt: skip
    return [shapes[kind] for kind in problem.epilogue.operands[1:]] if problem.epilogue else []


def bench_program(problem: Problem, drivers: tuple[GemmDriver, ...]) -> Program:
    """The product alone; inputs are x, w, bias, extras, and y of the node before, unread."""
    k, n = problem.k, problem.n
    shapes: list[tuple[Extent, ...]] = [("m", k), weight_shape(problem)]
    views: list[View | None] = [_dense(0, shapes[0]), _dense(1, shapes[1]), None]
    if problem.bias:
        views[2] = _dense(2, (n,))
        shapes.append((n,))
    steps: Mapping[str, tuple[Extent, ...]] = {
        "full": (n, 1), "row": (0, 1), "col": (1, 0), "scalar": (0, 0)
    }  # fmt: skip
    kinds = problem.epilogue.operands[1:] if problem.epilogue else ()
    for kind, shape in zip(kinds, _extra_shapes(problem, "m"), strict=True):
        views.append(View(Buffer("input", len(shapes)), ("m", n), steps[kind]))
        shapes.append(shape)
    shapes.append(("m", n))
    views.append(View(Buffer("output", 0), ("m", n), (n, 1)))
    layout = LAYOUTS.index(problem.layout)
    call = Call("gemm", tuple(views), (layout,), chain=problem.epilogue, drivers=drivers)
    inputs = tuple(TensorSpec(DType.F32, shape) for shape in shapes)
    return Program(inputs, (TensorSpec(DType.F32, ("m", n)),), {"m": (0, 0)}, (), (call,))


def _dense(index: int, dims: tuple[Extent, ...]) -> View:
    strides: list[Extent] = [1]
    for dim in reversed(dims[1:]):
        assert isinstance(dim, int) and isinstance(strides[0], int)
        strides.insert(0, strides[0] * dim)
    return View(Buffer("input", index), dims, tuple(strides))


def _op_type(problem: Problem) -> OpType:
    count = len(bench_program(problem, ()).inputs)
    return OpType(f"Bench_{count}", (DType.F32,) * count, (DType.F32,))


class Stand(AbstractContextManager["Stand"]):
    """Races drivers of one case after another; use it in a ``with`` statement.

    ``cache`` are the bytes of the last-level cache, which one run of a model must exceed.  Raises
    BuildError when the library cannot be built.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        isa: str,
        folder: Path,
        *,
        environment: Environment,
        cache: int,
    ) -> None:
        found = list(problems)
        self._folder, self._cache = folder, cache
        chains = {p.epilogue.key: p.epilogue for p in found if p.epilogue}
        types = {t.name: t for t in map(_op_type, found)}
        self.library = build_library(
            list(types.values()),
            ("gemm",),
            list(chains.values()),
            (isa,),
            folder / "bench.so",
            environment=environment,
        )
        self._data = folder / "weights.data"
        self._worker: Worker | None = None
        self._open: dict[tuple[GemmDriver, int], str] = {}
        self._case: Case | None = None
        self._feeds: dict[str, Array] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def race(
        self, case: Case, a: GemmDriver, b: GemmDriver, threads: int, pairs: int, seconds: float
    ) -> Race:
        """Run two drivers of a case in turn, whatever their ``max_rows``.

        Raises WorkerError if either cannot run; the next race starts a new worker then.
        """
        if case != self._case:
            self._prepare(case)
        try:
            worker = self._worker = self._worker or Worker(limit=_LIMIT)
            names = [self._opened(worker, case, driver, threads) for driver in (a, b)]
            return worker.race(
                names[0], names[1], self._feeds, pairs=pairs, warmup=1, seconds=seconds
            )
        except WorkerError:
            self._stop()
            raise

    def model(self, case: Case) -> Repeated:
        """The model of a case, without its plan."""
        problem, rows = case.problem, case.rows
        shapes: dict[str, tuple[int, ...]] = {"x": (rows, problem.k)}
        if problem.bias:
            shapes["b"] = (problem.n,)
        for i, shape in enumerate(_extra_shapes(problem, rows)):
            shapes[f"e{i}"] = tuple(d for d in shape if isinstance(d, int))
        shapes["y0"] = (rows, problem.n)
        margin = LARGE_MARGIN if rows >= LARGE_ROWS else MARGIN
        wanted = min(self._cache * margin, MOST_BYTES)
        count = math.ceil(wanted / problem.weight_bytes)
        return Repeated(
            self.library.domain, _op_type(problem).name, shapes, shapes["y0"],
            weight_shape(problem), min(max(count, 2), MOST_NODES), self._data.name,
        )  # fmt: skip

    def _prepare(self, case: Case) -> None:
        """Feeds and weights for a case; sessions of the last one are closed."""
        model = self.model(case)
        self._provide(model.count * model.stride)
        random = np.random.default_rng(0)
        self._feeds = {
            name: random.standard_normal(dims, dtype=np.float32)
            for name, dims in model.inputs.items()
        }
        for name in self._open.values():
            if self._worker is not None:
                self._worker.close(name)
        self._open, self._case = {}, case

    def _provide(self, size: int) -> None:
        """Let the data file be at least so long; its content repeats."""
        have = self._data.stat().st_size if self._data.exists() else 0
        if have >= size:
            return
        block = np.random.default_rng(1).standard_normal(_BLOCK // 4, dtype=np.float32) * 0.02
        with self._data.open("ab") as file:
            for _ in range(have, size, _BLOCK):
                file.write(block.tobytes())

    def _opened(self, worker: Worker, case: Case, driver: GemmDriver, threads: int) -> str:
        key = (driver, threads)
        if key not in self._open:
            name = f"s{len(self._open)}"
            path = self._folder / f"{name}.onnx"
            plan = encode(bench_program(case.problem, (driver,)))
            path.write_bytes(self.model(case).serialize(plan))
            worker.open(name, path, self.library.path, threads=threads)
            self._open[key] = name
        return self._open[key]

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker, self._open = None, {}
