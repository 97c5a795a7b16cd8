"""Cases and drivers as JSON: in the cache, in locks, and between machines that share studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.drivers import ConvDriver, GemmDriver
from tracea_graph.kernels.program import Call, Driver
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning.convolution import Box, ConvProblem
from tracea_graph.tuning.problem import Case, GemmProblem

__all__ = ["case_from_json", "case_to_json", "driver_from_json", "driver_to_json"]


def driver_to_json(driver: Driver) -> dict[str, int]:
    """Its settings by name."""
    return asdict(driver)


def driver_from_json(data: Mapping[str, Any]) -> Driver:
    """The inverse of :func:`driver_to_json`.  Raises KeyError, TypeError or ValueError."""
    kind = GemmDriver if "max_rows" in data else ConvDriver
    return kind(**{str(name): int(value) for name, value in dict(data).items()})


def case_to_json(case: Case) -> dict[str, Any]:
    """JSON-ready values."""
    p = case.problem
    epilogue = p.epilogue and _chain_to_json(p.epilogue)
    if isinstance(p, ConvProblem):
        ints, floats = CALLS[p.kernel].words(p.attributes)
        held = {f.name: getattr(p, f.name) for f in fields(p)}
        del held["attributes"]
        boxes = {name: asdict(box) for name, box in held.items() if isinstance(box, Box)}
        extras = [asdict(box) for box in p.extras]
        numbers = {"ints": ints, "floats": [str(value) for value in floats]}  # JSON: no infinity
        return {"rows": case.rows, **held, **boxes, **numbers, "extras": extras,
                "epilogue": epilogue}  # fmt: skip
    return {
        "rows": case.rows, "k": p.k, "n": p.n, "layout": p.layout, "bias": p.bias,
        "parts": list(p.parts), "epilogue": epilogue,
    }  # fmt: skip


def case_from_json(data: Mapping[str, Any]) -> Case:
    """The inverse of :func:`case_to_json`.  Raises KeyError, TypeError or ValueError."""
    chain = data["epilogue"] and _chain_from_json(data["epilogue"])
    problem = _convolution(data, chain) if "op" in data else _product(data, chain)
    return Case(problem, int(data["rows"]))


def _product(data: Mapping[str, Any], chain: Chain | None) -> GemmProblem:
    return GemmProblem(
        int(data["k"]), int(data["n"]), str(data["layout"]), bool(data["bias"]), chain,
        tuple(map(int, data["parts"])),
    )  # fmt: skip


def _convolution(data: Mapping[str, Any], chain: Chain | None) -> ConvProblem:
    op, multiplies = str(data["op"]), str(data["multiplies"])
    schema = CALLS[Call.name_of(op, multiplies)]
    attributes = schema.attributes_of(
        tuple(map(int, data["ints"])), tuple(map(float, data["floats"]))
    )
    return ConvProblem(
        op, multiplies, attributes,
        _box(data["x"]), tuple(map(int, data["weights"])), _box(data["y"]), bool(data["bias"]),
        data["add"] and _box(data["add"]), chain, tuple(map(_box, data["extras"])),
    )  # fmt: skip


def _box(data: Mapping[str, Any]) -> Box:
    a, b, c, d = map(int, data["dims"])
    images, blocks, rows, columns, lanes = map(int, data["strides"])
    return Box((a, b, c, d), (images, blocks, rows, columns, lanes), DType[data["dtype"]].name)


def _chain_to_json(chain: Chain) -> dict[str, Any]:
    return {
        "operands": list(chain.operands),
        "steps": [[step.op, list(step.args)] for step in chain.steps],
        "results": list(chain.results),
        "dtypes": [dtype.name for dtype in chain.dtypes],
        "stores": [dtype.name for dtype in chain.stores],
        "rough": chain.rough,
    }


def _chain_from_json(data: Mapping[str, Any]) -> Chain:
    dtypes, stores = (tuple(DType[name] for name in data[k]) for k in ("dtypes", "stores"))
    steps = tuple(Step(op, tuple(args)) for op, args in data["steps"])
    results = tuple(data["results"])
    return Chain(tuple(data["operands"]), steps, results, dtypes, stores, data["rough"])
