"""The gate layout of recurrent cells that the CPU kernels read in place.

W and R are stored as panels ``[directions, panels, K, 16]``.  Each gate has its own panels, so
that one pass over k computes all gates of 16 units.  The units that do not fill a panel are packed
gate by gate into shared panels at the end if that saves one: an LSTM of 100 units has 4 x 6 own
panels and one shared panel with 4 units of each gate.  Unused lanes of matrices and biases are
zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.recurrent import GateLayout
from tracea_graph.ops.weight_layouts import Floats

__all__ = ["GATE_PANELS", "GateLanes", "GatePanels"]


@dataclass(frozen=True)
class GateLanes:
    """Assignment of the units of ``gates`` gates, ``hidden`` units each, to lanes of panels."""

    gates: int
    hidden: int

    @property
    def own(self) -> int:
        """Number of panels of each gate that hold units of no other gate."""
        whole, rest = divmod(self.hidden, PANEL)
        return whole + (-(-self.gates * rest // PANEL) == self.gates)

    @property
    def shared(self) -> int:
        """Number of units of each gate that are stored in shared panels."""
        return max(0, self.hidden - self.own * PANEL)

    @property
    def columns(self) -> int:
        """Total number of lanes."""
        return (self.gates * self.own + -(-self.gates * self.shared // PANEL)) * PANEL

    def pad(self, rows: Floats) -> Floats:
        """Spread ``[directions, gates, H, …]`` over lanes: ``[directions, columns, …]``."""
        directions, _, _, *more = rows.shape
        padded = np.zeros((directions, self.columns, *more), rows.dtype)
        split, wide = min(self.hidden, self.own * PANEL), self.gates * self.own * PANEL
        own = padded[:, :wide].reshape(directions, self.gates, self.own * PANEL, *more)
        own[:, :, :split] = rows[:, :, :split]
        shared = rows[:, :, split:].reshape(directions, -1, *more)
        padded[:, wide : wide + shared.shape[1]] = shared
        return padded

    def take(self, lanes: Floats) -> Floats:
        """The inverse of :meth:`pad`: ``[directions, gates, H, …]``."""
        directions, _, *more = lanes.shape
        wide, shared = self.gates * self.own * PANEL, self.gates * self.shared
        own = lanes[:, :wide].reshape(directions, self.gates, self.own * PANEL, *more)
        behind = lanes[:, wide : wide + shared].reshape(directions, self.gates, -1, *more)
        return np.concatenate((own[:, :, : self.hidden], behind), 2)

    def to_onnx(self, b: BodyBuilder, lanes: str, directions: int) -> str:
        """Emit nodes that undo :meth:`pad` for ``[directions, columns, K]``; a bias has K = 1."""
        wide, pieces = self.gates * self.own * PANEL, []
        if self.own:
            own = b.slice_last(lanes, 0, wide, 1) if self.shared else lanes
            own = b("Reshape", own, b.ints(directions, self.gates, self.own * PANEL, -1))
            if self.own * PANEL > self.hidden:
                own = b.slice_last(own, 0, self.hidden, 2)
            pieces.append(own)
        if self.shared:
            rest = b.slice_last(lanes, wide, wide + self.gates * self.shared, 1)
            pieces.append(b("Reshape", rest, b.ints(directions, self.gates, self.shared, -1)))
        return b("Concat", *pieces, axis=2) if len(pieces) > 1 else pieces[0]


@dataclass(frozen=True)
class GatePanels(GateLayout):
    """Layout of all gates as panels; groups of gates follow each other."""

    name: ClassVar[str] = "gate_panels"

    def columns(self, groups: Sequence[int], hidden: int) -> int:
        """Total number of lanes of all groups."""
        return sum(GateLanes(gates, hidden).columns for gates in groups)

    def pack_bias(self, rows: Floats, groups: Sequence[int], hidden: int) -> Floats:
        """Spread ``[directions, gates · H, …]`` over all lanes, padded with zeros."""
        directions, _, *more = rows.shape
        apart = rows.reshape(directions, -1, hidden, *more)
        parts = zip(groups, np.split(apart, np.cumsum(groups)[:-1], axis=1), strict=True)
        return np.concatenate(
            [GateLanes(count, hidden).pad(gates) for count, gates in parts], axis=1
        )

    def pack_matrix(self, matrix: Floats, groups: Sequence[int], hidden: int) -> Floats:
        """Pack ONNX's ``[directions, gates · H, K]`` into ``[directions, panels, K, 16]``."""
        padded = self.pack_bias(matrix, groups, hidden)
        directions, rows, k = padded.shape
        panels = padded.reshape(directions, rows // PANEL, PANEL, k)
        return np.ascontiguousarray(panels.transpose(0, 1, 3, 2))

    def bias(self, stored: Floats, groups: Sequence[int], hidden: int) -> Floats:
        found, at = [], 0
        for lanes in (GateLanes(gates, hidden) for gates in groups):
            found.append(lanes.take(stored[:, at : at + lanes.columns]))
            at += lanes.columns
        directions, _, *more = stored.shape
        plain: Floats = np.concatenate(found, 1).reshape(directions, -1, *more)
        return plain

    def matrix(self, stored: Floats, groups: Sequence[int], hidden: int) -> Floats:
        directions, panels, k, _ = stored.shape
        lanes = stored.transpose(0, 1, 3, 2).reshape(directions, panels * PANEL, k)
        return self.bias(lanes, groups, hidden)

    def rest(self, stored: Floats, hidden: int) -> Floats:
        return stored[:, :hidden]

    def matrix_to_onnx(
        self, b: BodyBuilder, stored: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        transposed = b("Transpose", stored, perm=(0, 1, 3, 2))
        lanes = b("Reshape", transposed, b.ints(directions, self.columns(groups, hidden), -1))
        gates = self._gates_to_onnx(b, lanes, directions, groups, hidden)
        return b("Reshape", gates, b.ints(directions, sum(groups) * hidden, -1))

    def bias_to_onnx(
        self, b: BodyBuilder, stored: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        gates = self._gates_to_onnx(b, stored, directions, groups, hidden)
        return b("Reshape", gates, b.ints(directions, sum(groups) * hidden))

    def rest_to_onnx(self, b: BodyBuilder, stored: str, hidden: int) -> str:
        return b.slice_last(stored, 0, hidden) if hidden % PANEL else stored

    def _gates_to_onnx(
        self, b: BodyBuilder, lanes: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        """Emit the nodes from ``[directions, columns, K]`` to ``[directions, gates, H, K]``."""
        parts, at = [], 0
        for part in (GateLanes(gates, hidden) for gates in groups):
            of = b.slice_last(lanes, at, at + part.columns, 1) if len(groups) > 1 else lanes
            parts.append(part.to_onnx(b, of, directions))
            at += part.columns
        return b("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


GATE_PANELS = GatePanels()
