"""Convert tuning problems to and from JSON, for studies shared between machines and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.schedules.conv import Box, ConvProblem
from tracea_graph.kernels.cpu.schedules.gemm import GemmProblem
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain
from tracea_graph.tuning.serialization import chain_from_json, chain_to_json

__all__ = ["problem_from_json", "problem_to_json"]


def problem_to_json(p: GemmProblem | ConvProblem) -> dict[str, Any]:
    """Encode a problem as JSON-ready values."""
    epilogue = p.epilogue and chain_to_json(p.epilogue)
    if isinstance(p, ConvProblem):
        ints, floats = CALLS[p.kernel].words(p.attributes)
        held = {f.name: getattr(p, f.name) for f in fields(p)}
        del held["attributes"]
        boxes = {name: asdict(box) for name, box in held.items() if isinstance(box, Box)}
        epilogue_inputs = [asdict(box) for box in p.epilogue_inputs]
        numbers = {"ints": ints, "floats": [str(value) for value in floats]}  # JSON: no infinity
        return {
            **held,
            **boxes,
            **numbers,
            "epilogue_inputs": epilogue_inputs,
            "epilogue": epilogue,
        }
    return {
        "k": p.k, "n": p.n, "layout": p.layout, "bias": p.bias, "parts": list(p.parts),
        "epilogue": epilogue,
    }  # fmt: skip


def problem_from_json(data: Mapping[str, Any]) -> GemmProblem | ConvProblem:
    """The inverse of :func:`problem_to_json`.  Raises KeyError, TypeError or ValueError."""
    chain = data["epilogue"] and chain_from_json(data["epilogue"])
    return _convolution(data, chain) if "op" in data else _product(data, chain)


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
        data["add"] and _box(data["add"]), chain, tuple(map(_box, data["epilogue_inputs"])),
    )  # fmt: skip


def _box(data: Mapping[str, Any]) -> Box:
    a, b, c, d = map(int, data["dims"])
    images, blocks, rows, columns, lanes = map(int, data["strides"])
    return Box((a, b, c, d), (images, blocks, rows, columns, lanes), DType[data["dtype"]].name)
