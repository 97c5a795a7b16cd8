"""Serialize cases, schedules and chains as JSON for the cache, locks and shared studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.program import Schedule
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.tuning_problem import Case

__all__ = [
    "case_from_json", "case_to_json", "chain_from_json", "chain_to_json", "schedule_to_json",
]  # fmt: skip


def schedule_to_json(schedule: Schedule) -> dict[str, int]:
    """Return a schedule's settings by name; the backend's schedule space parses them."""
    return asdict(schedule)


def case_to_json(case: Case, schedule_space: ScheduleSpace) -> dict[str, Any]:
    """Return JSON-ready values."""
    return {"rows": case.rows, **schedule_space.problem_to_json(case.problem)}


def case_from_json(data: Mapping[str, Any], schedule_space: ScheduleSpace) -> Case:
    """Parse what :func:`case_to_json` returned.  Raises KeyError, TypeError or ValueError."""
    return Case(schedule_space.problem_from_json(data), int(data["rows"]))


def chain_to_json(chain: Chain) -> dict[str, Any]:
    """Return JSON-ready values."""
    return {
        "operands": list(chain.operands),
        "steps": [[step.op, list(step.args)] for step in chain.steps],
        "results": list(chain.results),
        "dtypes": [dtype.name for dtype in chain.dtypes],
        "stores": [dtype.name for dtype in chain.stores],
        "fast_math": chain.fast_math,
    }


def chain_from_json(data: Mapping[str, Any]) -> Chain:
    """Parse what :func:`chain_to_json` returned.  Raises KeyError, TypeError or ValueError."""
    dtypes, stores = (tuple(DType[name] for name in data[k]) for k in ("dtypes", "stores"))
    steps = tuple(Step(op, tuple(args)) for op, args in data["steps"])
    results = tuple(data["results"])
    return Chain(tuple(data["operands"]), steps, results, dtypes, stores, data["fast_math"])
