"""Convert recurrent layers.

LSTM(x, W, R, B, , h0, c0), GRU(…)  -> FusedRecurrent
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.recurrent import GATES, RecurrentParams
from tracea_graph.ops.weight_layouts import Floats
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RECURRENT"]

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_PLAIN = {
    "lstm": (b"sigmoid", b"tanh", b"tanh"),
    "gru": (b"sigmoid", b"tanh"),
}
_LENGTHS, _STATE, _PEEPHOLES = 4, 5, 7
"""Indices of optional operands."""
_RESULTS = ("y", "h", "c")


def _cell(op: Any, x: Any, w: Any, r: Any) -> Any:
    return op.one_of([kind.upper() for kind in GATES], x, w, r, ...)


def _check(m: Match) -> str | None:
    return _unfit(m.graph, m.root, m.root.op.lower(), _padded(m.root))


def _padded(region: Region) -> tuple[str, ...]:
    return (*region.operands, *[""] * (_PEEPHOLES + 1))


def _convert(m: Match) -> Rewrite:
    """Convert a layer with constant matrices and ONNX's default activations."""
    graph, region, operands = m.graph, m.root, _padded(m.root)
    kind = region.op.lower()
    states = [v for v in operands[_STATE : _STATE + (2 if kind == "lstm" else 1)] if v]
    params = RecurrentParams(
        kind,
        graph.weights[operands[1]].shape[2],
        graph.weights[operands[2]].shape[2],
        _DIRECTIONS[_text(region, "direction", "forward")],
        bool(states),
        tuple(n for n, v in zip(_RESULTS, region.results, strict=False) if v),
        kind == "gru" and not attribute(region, "linear_before_reset", 0),
    )
    weights = _stored(graph, operands, params)
    new = fused_region(
        "recurrent", params, (operands[0], *(w.name for w in weights), *states),
        tuple(filter(None, region.results)), [region],
    )  # fmt: skip
    return Rewrite((new,), weights={w.name: w for w in weights})


def _unfit(graph: TileGraph, region: Region, kind: str, operands: tuple[str, ...]) -> str | None:
    """Return why the kernel cannot compute a layer, or None."""
    direction = _text(region, "direction", "forward")
    if any(graph.weight(v) is None for v in operands[1:3]):
        return f"the matrices {operands[1]!r} and {operands[2]!r} are not both constant"
    if operands[3] and graph.weight(operands[3]) is None:
        return Reason(f"the bias {operands[3]!r} is not constant", Code.NOT_CONSTANT)
    if not is_f32(graph, *(v for i, v in enumerate(operands) if v and i != _LENGTHS)):
        return Reason("the operands are not float32", Code.UNSUPPORTED_DTYPE)
    if operands[_LENGTHS]:
        return f"its sequences have individual lengths, {operands[_LENGTHS]!r}"
    if kind == "lstm" and operands[_PEEPHOLES]:
        return f"it has peepholes, {operands[_PEEPHOLES]!r}"
    if kind == "lstm" and bool(operands[_STATE]) != bool(operands[_STATE + 1]):
        return "it has only one of the two initial states"
    if any(region.node.attrs.get(name) for name in ("clip", "layout", "input_forget")):
        return "it sets clip, input_forget or layout"
    if direction not in _DIRECTIONS or graph.spec(operands[0]).rank != 3:
        return f"the direction {direction!r} or the rank of {operands[0]!r} is not known"
    named = region.node.attrs.get("activations")
    wanted = _PLAIN[kind] * len(_DIRECTIONS[direction])
    if isinstance(named, tuple) and tuple(_bytes(n).lower() for n in named) != wanted:
        return "its activations are not the defaults"
    return None


def _text(region: Region, name: str, default: str) -> str:
    return _bytes(attribute(region, name, default)).decode()


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _stored(graph: TileGraph, operands: tuple[str, ...], params: RecurrentParams) -> list[Weight]:
    """Return W, R, the bias and the GRU's separate bias, named after their sources."""
    rows, directions = params.gates * params.hidden, params.directions
    late = rows - params.hidden  # the last gate's part is reset with the product
    bias = graph.weights[operands[3]] if operands[3] else None

    def halves() -> list[Floats]:
        none = np.zeros((directions, 2 * rows), np.float32)
        both = none if bias is None else np.asarray(bias.load(), np.float32)
        return np.split(both.copy(), 2, axis=1)

    def summed() -> Array:
        ahead, back = halves()
        if params.late:
            back[:, late:] = 0
        return ahead + back

    def rest() -> Array:
        return halves()[1][:, late:]

    of = operands[3] or operands[2]
    made = [*(graph.weights[v] for v in operands[1:3])]
    apart = "_apart" if params.late else ""
    made.append(Weight(f"{of}_sum{apart}", DType.F32, (directions, rows), summed))
    if params.late:
        made.append(Weight(f"{of}_rest", DType.F32, (directions, params.hidden), rest))
    return made


RECURRENT = Rule("recurrent", (_cell,), _convert, _check)
