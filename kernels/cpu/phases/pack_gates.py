"""Store the gates of recurrent cells in the panels that the CPU kernels read.

FusedRecurrent(x, W, R, bias, rest, …)    ->    FusedRecurrent over panels of gates

The rule always applies: the kernels read no other layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.gate_layouts import GATE_PANELS
from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.ops.recurrent import PLAIN_GATES, RecurrentParams
from tracea_graph.ops.weight_layouts import Floats
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["PackGates"]


def _cell(op: Any, x: Any) -> Any:
    return op.FusedRecurrent(x, ...)


class PackGates(PatternPass):
    """Pack the constant matrices and biases of a recurrent cell into panels."""

    name = "pack-gates"
    patterns = (_cell,)

    def check(self, m: Match) -> str | None:
        return (
            None
            if m.root.params.layout == PLAIN_GATES
            else unsuited_reason("its gates are packed already")
        )

    def rewrite(self, m: Match) -> Rewrite:
        graph, region, params = m.graph, m.root, m.root.params
        x, *plain, rest, initial = params.split(region.operands)
        stored = [graph.weights[v] for v in (*plain, *([rest] if rest else []))]
        made = _packed(params, stored)
        operands = (x, *(w.name for w in made), *initial)
        packed = dataclasses.replace(params, layout=GATE_PANELS)
        new = dataclasses.replace(region, params=packed, operands=operands)
        weights = {w.name: w for w in made}
        return Rewrite((new,), weights=weights, step=True)


def _packed(params: RecurrentParams, stored: list[Weight]) -> list[Weight]:
    """The packed W, R, bias and rest; each is computed on demand."""
    groups, hidden, directions = params.groups, params.hidden, params.directions
    columns = GATE_PANELS.columns(groups, hidden)

    def made(weight: Weight, shape: tuple[int, ...], pack: Callable[[Floats], Floats]) -> Weight:
        def load() -> Array:
            return pack(np.asarray(weight.load(), np.float32))

        apart = "_apart" if len(groups) > 1 else ""
        return Weight(f"{weight.name}_gates{apart}", DType.F32, shape, load)

    w, r, bias, *rest = stored
    return [
        *(
            made(
                m, (directions, columns // PANEL, m.shape[2], PANEL),
                lambda plain: GATE_PANELS.pack_matrix(plain, groups, hidden),
            )
            for m in (w, r)
        ),
        made(bias, (directions, columns), lambda p: GATE_PANELS.pack_bias(p, groups, hidden)),
        *(
            made(
                m, (directions, GATE_PANELS.columns((1,), hidden)),
                lambda plain: GATE_PANELS.pack_bias(plain, (1,), hidden),
            )
            for m in rest
        ),
    ]  # fmt: skip
