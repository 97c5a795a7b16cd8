"""Cases as JSON: how machines that share studies tell each other what to measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning.problem import Case, Problem

__all__ = ["case_from_json", "case_to_json"]


def case_to_json(case: Case) -> dict[str, Any]:
    """JSON-ready values."""
    p = case.problem
    return {
        "rows": case.rows, "k": p.k, "n": p.n, "layout": p.layout, "bias": p.bias,
        "parts": list(p.parts), "epilogue": p.epilogue and _chain_to_json(p.epilogue),
    }  # fmt: skip


def case_from_json(data: Mapping[str, Any]) -> Case:
    """The inverse of :func:`case_to_json`.  Raises KeyError, TypeError or ValueError."""
    chain = data["epilogue"]
    problem = Problem(
        int(data["k"]), int(data["n"]), str(data["layout"]), bool(data["bias"]),
        chain and _chain_from_json(chain), tuple(map(int, data["parts"])),
    )  # fmt: skip
    return Case(problem, int(data["rows"]))


def _chain_to_json(chain: Chain) -> dict[str, Any]:
    return {
        "operands": list(chain.operands),
        "steps": [[step.op, list(step.args)] for step in chain.steps],
        "results": list(chain.results),
        "dtypes": [dtype.name for dtype in chain.dtypes],
        "stores": [dtype.name for dtype in chain.stores],
    }


def _chain_from_json(data: Mapping[str, Any]) -> Chain:
    dtypes, stores = (tuple(DType[name] for name in data[k]) for k in ("dtypes", "stores"))
    steps = tuple(Step(op, tuple(args)) for op, args in data["steps"])
    return Chain(tuple(data["operands"]), steps, tuple(data["results"]), dtypes, stores)
