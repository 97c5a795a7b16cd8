"""Cases, drivers and chains as JSON: in the cache, in locks, and between machines that share
studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.program import Driver
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning.problem import Case
from tracea_graph.tuning.schedules import Schedules

__all__ = [
    "case_from_json", "case_to_json", "chain_from_json", "chain_to_json", "driver_to_json",
]  # fmt: skip


def driver_to_json(driver: Driver) -> dict[str, int]:
    """Its settings by name; its backend's schedules know the inverse."""
    return asdict(driver)


def case_to_json(case: Case, schedules: Schedules) -> dict[str, Any]:
    """JSON-ready values."""
    return {"rows": case.rows, **schedules.problem_to_json(case.problem)}


def case_from_json(data: Mapping[str, Any], schedules: Schedules) -> Case:
    """The inverse of :func:`case_to_json`.  Raises KeyError, TypeError or ValueError."""
    return Case(schedules.problem_from_json(data), int(data["rows"]))


def chain_to_json(chain: Chain) -> dict[str, Any]:
    """JSON-ready values."""
    return {
        "operands": list(chain.operands),
        "steps": [[step.op, list(step.args)] for step in chain.steps],
        "results": list(chain.results),
        "dtypes": [dtype.name for dtype in chain.dtypes],
        "stores": [dtype.name for dtype in chain.stores],
        "rough": chain.rough,
    }


def chain_from_json(data: Mapping[str, Any]) -> Chain:
    """The inverse of :func:`chain_to_json`.  Raises KeyError, TypeError or ValueError."""
    dtypes, stores = (tuple(DType[name] for name in data[k]) for k in ("dtypes", "stores"))
    steps = tuple(Step(op, tuple(args)) for op, args in data["steps"])
    results = tuple(data["results"])
    return Chain(tuple(data["operands"]), steps, results, dtypes, stores, data["rough"])
