"""Convert tuning problems to and from JSON, for studies shared between machines and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tracea_graph.ir import DType, Expr, Extent
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.schedules.conv_problem import BlockedOperand, ConvProblem
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.kernels.cpu.schedules.task_problem import Strided, TaskProblem
from tracea_graph.kernels.program import Attributes, Call
from tracea_graph.ops.chain import Chain
from tracea_graph.tuning.serialization import chain_from_json, chain_to_json

__all__ = ["problem_from_json", "problem_to_json"]


def problem_to_json(p: GemmProblem | ConvProblem | TaskProblem) -> dict[str, Any]:
    """Encode a problem as JSON-ready values."""
    epilogue = p.epilogue and chain_to_json(p.epilogue)
    if isinstance(p, TaskProblem):
        views = [
            v and {"dims": [*map(_extent, v.dims)], "strides": [*map(_extent, v.strides)],
                   "dtype": v.dtype}
            for v in p.views
        ]  # fmt: skip
        return {
            "op": p.op, "multiplies": p.multiplies, "views": views, "epilogue": epilogue,
            **_numbers(p),
        }  # fmt: skip
    if isinstance(p, ConvProblem):
        held = {f.name: getattr(p, f.name) for f in fields(p)}
        del held["attributes"]
        boxes = {
            name: asdict(box) for name, box in held.items() if isinstance(box, BlockedOperand)
        }
        epilogue_inputs = [asdict(box) for box in p.epilogue_inputs]
        return {
            **held,
            **boxes,
            **_numbers(p),
            "epilogue_inputs": epilogue_inputs,
            "epilogue": epilogue,
        }
    return {
        "k": p.k, "n": p.n, "layout": p.layout, "bias": p.bias, "parts": list(p.parts),
        "epilogue": epilogue, "x_type": p.x_type, "given_zero": p.given_zero,
        "own_zeros": p.own_zeros,
    }  # fmt: skip


def _numbers(p: ConvProblem | TaskProblem) -> dict[str, Any]:
    ints, floats = CALLS[p.kernel].words(p.attributes)
    return {"ints": ints, "floats": [str(value) for value in floats]}  # JSON: no infinity


def _extent(extent: Extent) -> Any:
    """An extent as a number, a symbol, or a list of the operator and both operands."""
    return [extent.op, *map(_extent, extent.args)] if isinstance(extent, Expr) else extent


def problem_from_json(data: Mapping[str, Any]) -> GemmProblem | ConvProblem | TaskProblem:
    """The inverse of :func:`problem_to_json`.  Raises KeyError, TypeError or ValueError."""
    chain = data["epilogue"] and chain_from_json(data["epilogue"])
    if "views" in data:
        views = tuple(v and _strided(v) for v in data["views"])
        op, multiplies = str(data["op"]), str(data["multiplies"])
        return TaskProblem(op, multiplies, _attributes(data), views, chain)
    return _convolution(data, chain) if "op" in data else _product(data, chain)


def _attributes(data: Mapping[str, Any]) -> Attributes:
    schema = CALLS[Call.name_of(str(data["op"]), str(data["multiplies"]))]
    return schema.attributes_of(tuple(map(int, data["ints"])), tuple(map(float, data["floats"])))


def _strided(data: Mapping[str, Any]) -> Strided:
    dims, strides = (tuple(map(_extent_of, data[name])) for name in ("dims", "strides"))
    return Strided(dims, strides, DType[data["dtype"]].name)


def _extent_of(data: int | str | list[Any]) -> Extent:
    if isinstance(data, int | str):
        return data
    op, a, b = data
    return Expr(str(op), (_extent_of(a), _extent_of(b)))


def _product(data: Mapping[str, Any], chain: Chain | None) -> GemmProblem:
    return GemmProblem(
        int(data["k"]), int(data["n"]), str(data["layout"]), bool(data["bias"]), chain,
        tuple(map(int, data["parts"])), str(data.get("x_type", "")),
        bool(data.get("given_zero")), bool(data.get("own_zeros")),
    )  # fmt: skip


def _convolution(data: Mapping[str, Any], chain: Chain | None) -> ConvProblem:
    return ConvProblem(
        str(data["op"]), str(data["multiplies"]), _attributes(data),
        _box(data["x"]), tuple(map(int, data["weights"])), _box(data["y"]), bool(data["bias"]),
        data["add"] and _box(data["add"]), chain, tuple(map(_box, data["epilogue_inputs"])),
    )  # fmt: skip


def _box(data: Mapping[str, Any]) -> BlockedOperand:
    a, b, c, d = map(int, data["dims"])
    images, blocks, rows, columns, lanes = map(int, data["strides"])
    return BlockedOperand(
        (a, b, c, d), (images, blocks, rows, columns, lanes), DType[data["dtype"]].name
    )
