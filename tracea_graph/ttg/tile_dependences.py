"""Dependences between the tiles of two regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.iteration_space import Ints
from tracea_graph.ttg.tile_set import EDGE, EdgeKind, TileSet

__all__ = ["DEPENDENCE", "data_edges", "dependence_kind", "dependences"]

DEPENDENCE = np.dtype(
    [(name, "<i4") for name in ("tile", "m_start", "m_stop", "n_start", "n_stop")]
)
"""A consumer's tile and the rectangle of the producer's grid that it needs."""

Records = npt.NDArray[Any]


def dependences(producer: TileSet, consumer: TileSet, value: str) -> Records:
    """Return the producer's tiles that each active consumer tile needs of a value.

    Rows have dtype :data:`DEPENDENCE`.  The result is exact for affine accesses; tiles that read
    nothing of the value are left out.  Raises GraphError if the producer does not write the value
    or the consumer does not read it.
    """
    if producer.model is None or consumer.model is None:
        raise GraphError("hand-built tiles have no access maps: expand a region")
    writes = [a for a in producer.model.writes if a.value == value]
    reads = [a for a in consumer.model.reads if a.value == value]
    if not writes or not reads:
        raise GraphError(f"value {value!r} is not passed between the two regions")
    starts, stops = consumer.ranges()
    parts = []
    for access in reads:
        needed = writes[0].preimage(*access.box(starts, stops))
        parts.append(_rectangles(producer, *needed))
    low = np.minimum.reduce([p[0] for p in parts])
    high = np.maximum.reduce([p[1] for p in parts])
    used = (high > low).all(-1)
    result = np.empty(int(used.sum()), DEPENDENCE)
    result["tile"] = consumer.order[used]
    for i, axis in enumerate("mn"):
        result[f"{axis}_start"], result[f"{axis}_stop"] = low[used, i], high[used, i]
    return result


def _rectangles(producer: TileSet, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Grid rectangles (low, high), ``[tiles, 2]``, that cover boxes of points."""
    assert producer.model is not None
    batch, rows, columns, _ = producer.model.flatten(starts, stops)
    _, m, _, _ = producer.model.problem
    per_problem = producer.grid[0] // max(producer.batch, 1)
    tm, tn = producer.tile[0], producer.tile[1]
    several = batch[1] - batch[0] > 1
    first = np.where(several, 0, rows[0] // tm)
    last = np.where(several, -(-m // tm), -(-rows[1] // tm))
    low = np.stack([batch[0] * per_problem + first, columns[0] // tn], -1)
    high = np.stack([(batch[1] - 1) * per_problem + last, -(-columns[1] // tn)], -1)
    nothing = (stops <= starts).any(-1, keepdims=True)
    return low, np.where(nothing, low, high)


def data_edges(producer: TileSet, consumer: TileSet, value: str) -> Records:
    """Return one DATA edge per consumer tile, from the last producer tile it needs.

    ``source`` is a tile of the producer, ``target`` one of the consumer.  In row-major order the
    last tile implies the others of its rectangle; :func:`dependences` lists the rectangle.
    """
    needs = dependences(producer, consumer, value)
    last = np.full(producer.grid, -1, np.int32)
    rank = np.arange(len(producer.table), dtype=np.int32)
    last[producer.table["region_m"], producer.table["region_n"]] = rank
    edges = np.empty(len(needs), EDGE)
    edges["source"] = last[needs["m_stop"] - 1, needs["n_stop"] - 1]
    edges["target"], edges["kind"] = needs["tile"], EdgeKind.DATA
    return edges


def dependence_kind(needs: Records, producer: TileSet) -> str:
    """Classify dependences: ``none``, ``one-to-one``, ``row``, ``column``, ``all`` or ``halo``."""
    if not len(needs):
        return "none"
    rows, columns = needs["m_stop"] - needs["m_start"], needs["n_stop"] - needs["n_start"]
    one_row, one_column = bool((rows == 1).all()), bool((columns == 1).all())
    all_rows = bool((rows == producer.grid[0]).all())
    all_columns = bool((columns == producer.grid[1]).all())
    if one_row and one_column:
        return "one-to-one"
    if all_rows and all_columns:
        return "all"
    if one_row and all_columns:
        return "row"
    return "column" if one_column and all_rows else "halo"
