"""The search space of the tuner for matmuls, convolutions and attention on GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.ir import Array
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.gpu_measurement import NOMINAL, nominal
from tracea_graph.kernels.gpu.kernel_catalog import GpuCatalog, modelled_us
from tracea_graph.kernels.gpu.kernel_selection import few_row_variants
from tracea_graph.kernels.gpu.machine_model import gpus, level_of
from tracea_graph.kernels.gpu.schedule import TILE_SCHEDULES, TileSchedule
from tracea_graph.kernels.gpu.schedules.attention_problem import (
    AttentionProblem,
    attention_from_json,
    attention_of,
)
from tracea_graph.kernels.gpu.schedules.conv_problem import (
    ConvolutionProblem,
    conv_from_json,
    conv_of,
)
from tracea_graph.kernels.gpu.schedules.event_fixture import EventFixture
from tracea_graph.kernels.gpu.schedules.matmul_problem import (
    MatmulProblem,
    TiledProblem,
    config_of,
    matmul_of,
    tiles_of,
    variant_run,
)
from tracea_graph.kernels.gpu.tile_choice import choose_concurrent_tile, most_few
from tracea_graph.kernels.program import Call, Program, Schedule
from tracea_graph.policy import (
    Config,
    KernelCatalog,
    OperatorTopology,
    ProcessorFamily,
    SearchSpace,
)
from tracea_graph.toolchain.object_cache import sha256_of_parts
from tracea_graph.tuning.schedule_space import Fixture
from tracea_graph.tuning.serialization import chain_from_json, chain_to_json
from tracea_graph.tuning.tuning_problem import Case, Problem, default_schedule, row_class

__all__ = ["GpuScheduleSpace"]

_AXES = ("tile_m", "tile_n", "tile_k", "stages", "split_k", "pingpong", "pair")
_OLD = ({"tile_m": 64, "tile_n": 64, "tile_k": 64, "stages": 3},)
_OLD_MANY = ({"tile_m": 128, "tile_n": 128, "tile_k": 32, "stages": 4},)
_FEW = (
    {"tile_m": 64, "tile_n": 48, "split_k": 1}, {"tile_m": 64, "tile_n": 64, "split_k": 2},
)  # fmt: skip
_MANY = (
    {"tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 4},
    {"tile_m": 128, "tile_n": 192, "tile_k": 64, "stages": 5, "pingpong": 1},
)
_OLDER = (_OLD, _OLD, _OLD, _OLD_MANY, _OLD_MANY)
SEEDS: Mapping[str, tuple[tuple[Config, ...], ...]] = {
    **dict.fromkeys(("sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120"), _OLDER),
    "sm_90a": (_FEW, _FEW, (*_OLD, *_MANY), _MANY, _MANY),
}
"""Tiles of matmuls to measure first, by architecture and range of rows."""
_TALL = ({"tile_m": 128, "tile_n": 64, "stages": 2}, {"tile_m": 128, "tile_n": 32, "stages": 2})
_SMALL = ({"tile_m": 64, "tile_n": 32, "stages": 2},)
_WHOLE = ({"tile_m": 64, "tile_n": 128, "stages": 1}, {"tile_m": 16, "tile_n": 128, "stages": 1})
_FLASH = ({"tile_m": 128, "tile_n": 128, "stages": 2}, {"tile_m": 192, "tile_n": 128, "stages": 2})
_OLDER_ATTENTION = (_SMALL, _TALL, _TALL, _TALL, _TALL)
ATTENTION_SEEDS: Mapping[str, tuple[tuple[Config, ...], ...]] = {
    **dict.fromkeys(("sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120"), _OLDER_ATTENTION),
    "sm_90a": (_WHOLE, (*_WHOLE, *_FLASH), _FLASH, _FLASH, _FLASH),
}
"""Tiles of attention to measure first, by architecture and range of queries; those that a call
cannot run in are left out.  Tall tiles read keys half as often, small ones leave registers and
shared memory to other blocks.
"""


class GpuScheduleSpace:
    """Tiles of matmuls, convolutions and attention, timed by events on this machine's first
    GPU."""

    tile = ("m", "n", "k", "buffers", "split", "pingpong", "pair")
    least_us = 0.9
    """A shorter time per call is only the time from one kernel to the next."""
    architecture: ProcessorFamily | None = None

    def __init__(self, catalog: GpuCatalog) -> None:
        self.catalog: KernelCatalog = catalog

    @property
    def can_measure(self) -> bool:
        """Whether there is a GPU that kernels are built for."""
        return bool(gpus()) and bool(level_of(gpus()[0].capability))

    def usual_gain(self, case: Case) -> float:
        """Return 0.03, a gain of 3 %."""
        return 0.03

    def concurrent_schedule(self, case: Case, runs: int) -> Schedule | None:
        """Return the tile of a matmul of few rows where ``runs`` runs share a GPU, else None."""
        problem, rows = case.problem, case.rows
        if not isinstance(problem, MatmulProblem) or rows > most_few(problem.n):
            return None
        if not (tiles := list(few_row_variants(problem.call(rows)))):
            return None
        n, split = choose_concurrent_tile(rows, problem.n, problem.k, tiles, runs)
        return default_schedule(case).having(m=64, n=n, split=split)

    def threads(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return 1: the time of a GPU kernel does not depend on the number of host threads."""
        return (1,)

    def fixture(
        self, problems: Sequence[Problem], level: str, environment: Environment, cache: int | None
    ) -> AbstractContextManager[Fixture] | None:
        """Compile all tiles of the problems and return a fixture that times them by events."""
        own, sms = [_own(p) for p in problems], gpus()[0].units
        return EventFixture(own, level, environment, self._copied(cache), sms)

    def _copied(self, cache: int | None) -> int:
        """Return the bytes that all copies of buffers must exceed; 0 if weights stay in L2."""
        return 2 * self.cache_bytes if cache is None else 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of L2 of this machine's GPU, or of an H100 if there is no GPU."""
        found = gpus()
        return (found[0].l2 if found else 0) or NOMINAL["sm_90a"].l2

    def topology(self, case: Case) -> OperatorTopology:
        """Return the topology of a case's call."""
        return _own(case.problem).topology(case.rows)

    def levels(self, level: str) -> tuple[str, ...]:
        """Return only ``level``: tiles of other architectures are not timed on it."""
        return (level,)

    def problem_of(self, program: Program, call: Call) -> Problem | None:
        """Return a call's problem; None if it has no choice of tiles, or sizes that vary."""
        if call.op == "gemm":
            return matmul_of(call)
        if call.op == "conv":
            return conv_of(call)
        return attention_of(call) if call.op == "attention" else None

    def problem_to_json(self, problem: Problem) -> dict[str, Any]:
        """Return a problem as JSON-ready values."""
        p = _own(problem)
        return {
            **p.key,
            "dtype": p.multiplies,
            "epilogue": chain_to_json(p.epilogue) if p.epilogue else None,
        }

    def problem_from_json(self, data: Mapping[str, Any]) -> Problem:
        """Parse what :meth:`problem_to_json` returned.  Raises KeyError, TypeError, ValueError."""
        epilogue = chain_from_json(data["epilogue"]) if data["epilogue"] else None
        if str(data["kernel"]).startswith("conv"):
            return conv_from_json(data, epilogue)
        if str(data["kernel"]).startswith("attention"):
            return attention_from_json(data)
        return MatmulProblem(
            int(data["k"]), int(data["n"]), str(data["dtype"]), str(data["layout"]),
            str(data["norm"]), bool(data["bias"]), epilogue, bool(data["static"]),
        )  # fmt: skip

    def schedule_from_json(self, data: Mapping[str, Any]) -> Schedule:
        """Parse a schedule from a mapping of its field names to numbers."""
        return TileSchedule(**{str(name): int(value) for name, value in dict(data).items()})

    def space(self, case: Case, level: str, on: ProcessorFamily | None) -> SearchSpace:
        """Return an architecture's tiles for a case; zeros stand for the backend's choice."""
        problem = _own(case.problem)
        known = [config_of(variant) for variant in tiles_of(problem, level, case.rows)]
        legal = {tuple(config[axis] for axis in _AXES) for config in known}
        legal.add((0,) * len(_AXES))
        space = SearchSpace()
        for axis in _AXES:
            space = space.axis(axis, (0, *sorted({config[axis] for config in known})))
        space = space.require(
            "there is a kernel of this tile", lambda c: tuple(c[axis] for axis in _AXES) in legal
        ).once(lambda c: variant_run(problem, case.rows, self._schedule(case, c), level).tile)
        for seed in _seeds(case, level):
            if tuple(seed.get(axis, 0) for axis in _AXES) in legal:
                space = space.seed(**seed)
        return space

    def schedule(self, case: Case, config: Config) -> Schedule:
        """Convert a configuration of the space to a schedule."""
        return self._schedule(case, config)

    def _schedule(self, case: Case, config: Config) -> TileSchedule:
        return TileSchedule(default_schedule(case).limit, *(config[axis] for axis in _AXES))

    def modelled_us(self, case: Case, schedule: Schedule, level: str, threads: int) -> float:
        """Return the predicted µs of one call."""
        assert isinstance(schedule, TileSchedule)
        own = _own(case.problem)
        variant = variant_run(own, case.rows, schedule, level)
        return modelled_us(variant, self.topology(case), level, nominal(level))

    def read_us(self, size: float) -> float:
        """Return the predicted µs to read ``size`` cold bytes."""
        return size / NOMINAL["sm_90a"].gbytes * 1e-3

    def text_of(self, problem: Problem, level: str) -> str:
        """Return a digest of the sources of all tiles."""
        own, target = _own(problem), Target(CUDA, ARCHITECTURES[level])
        call = own.call(1)
        return sha256_of_parts(*(emit_kernel(call, v, target).text for v in tiles_of(own, level)))[
            :16
        ]

    def contents(self, problem: Problem) -> Mapping[int, Array]:
        """Return an empty mapping: kernel times do not depend on an operand's contents."""
        return {}

    def bench(self, problem: Problem, schedules: tuple[Schedule, ...] = ()) -> Program:
        """Return a program that consists of the problem's call only."""
        return _own(problem).program(schedules)


def _seeds(case: Case, level: str) -> tuple[Config, ...]:
    """Return tiles to measure first; none for convolutions, which have few."""
    problem = _own(case.problem)
    if problem.op == "gemm":
        return SEEDS[level][row_class(problem, case.rows)]
    if isinstance(problem, AttentionProblem):
        queries = problem.topology(case.rows).m
        return ATTENTION_SEEDS[level][sum(queries > one.limit for one in TILE_SCHEDULES)]
    return ()


def _own(problem: Problem) -> TiledProblem:
    assert isinstance(problem, MatmulProblem | ConvolutionProblem | AttentionProblem)
    return problem
