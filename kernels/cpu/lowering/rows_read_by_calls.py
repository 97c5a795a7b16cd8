"""Access ranges of calls: the rows of each view that some rows of the results need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import combine, product
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import Call, View

__all__ = [
    "SAME",
    "NotTileable",
    "RowsRead",
    "access_ranges",
    "as_rows",
    "call_inside_loop",
    "granularity_of",
    "halo_of_result",
    "result_indices",
    "result_views",
    "row_tiled",
    "views_read",
]  # fmt: skip


class NotTileable(ValueError):
    """Raised if calls cannot be tiled by rows; the message is the reason."""


@dataclass(frozen=True)
class RowsRead:
    """The access range of a view: the rows of it that a call reads for rows [n0, n1) of a result.

    These are rows [n0·stride, (n1 − 1)·stride + span).
    """

    stride: int = 1
    span: int = 1


SAME = RowsRead()


def row_tiled(call: Call) -> bool:
    """Return True if the call can compute a range of rows of its results."""
    return CALLS.of(call).row_tiled


def access_ranges(call: Call) -> Sequence[RowsRead | None]:
    """The access range of each view of a call; None for a view of which all rows are needed."""
    kinds = {"row": SAME, "all": None, "window": None}
    schema = CALLS.of(call)
    return [
        _window(call) if operand.rows == "window" else kinds[operand.rows]
        for operand, _ in schema.each(call)
    ]


def _window(call: Call) -> RowsRead:
    """The access range of a convolution's input.

    Raises NotTileable if the window's height is symbolic.
    """
    if call.op == "winograd":
        return RowsRead(1, 3)
    weight = CALLS.of(call).named(call)["w"]
    assert isinstance(weight, View)
    taps = weight.dims[1 if call.op == "depthwise" else 2]
    if not isinstance(taps, int):
        raise NotTileable("the window's height is not known")
    return RowsRead(
        call.attributes["strides"][0], (taps - 1) * call.attributes["dilations"][0] + 1
    )


def halo_of_result(call: Call) -> tuple[int, int, int, int]:
    """The halo around a call's result in its view: top, left, bottom, right."""
    sides: tuple[int, int, int, int] = call.attributes.get("halo", (0, 0, 0, 0))
    return sides


def result_indices(call: Call) -> range:
    """Indices of a call's results among its views."""
    return CALLS.of(call).written(call)


def result_views(call: Call) -> tuple[View, ...]:
    return tuple(v for i in result_indices(call) if (v := call.views[i]) is not None)


def views_read(call: Call) -> Iterator[tuple[View, RowsRead | None]]:
    """The views a call reads, each with its access range; None where all rows are needed."""
    own = result_indices(call)
    for i, (view, access) in enumerate(zip(call.views, access_ranges(call), strict=True)):
        if view is not None and i not in own:
            yield view, access


def granularity_of(call: Call) -> int:
    """Rows that a call computes together.

    Tiles must be multiples of it: only then are their results bitwise equal to the untiled ones.
    """
    granularity = CALLS.of(call).granularity
    return call.attributes[granularity] if granularity else 1


def call_inside_loop(call: Call) -> Call:
    """Return the call without ``zeros``: inside a loop, rows around a tile may be nonzero."""
    return call.having(zeros=(0, 0, 0, 0)) if "zeros" in call.attributes else call


def as_rows(call: Call) -> Call:
    """Merge the outer axes of an elementwise call's views, so that it works on matrices.

    Other calls are returned unchanged.  Raises NotTileable if the axes cannot be merged.
    """
    views = [v for v in call.views if v is not None]
    if call.op != "elementwise" or len(views[0].dims) in (2, 5):
        return call
    dims = views[0].dims
    if len(dims) < 2 or any(v.dims != dims for v in views):
        raise NotTileable("the views of an elementwise call do not form matrices")
    merged = []
    for view in views:
        for axis in range(len(dims) - 2):
            inner = combine("mul", view.dims[axis + 1], view.strides[axis + 1])
            if view.strides[axis] != inner and dims[axis] != 1:
                raise NotTileable("an elementwise call reads rows that are not adjacent in memory")
        shape = (product(dims[:-1]), dims[-1])
        merged.append(View(view.buffer, shape, view.strides[-2:], view.offset))
    return replace(call, views=tuple(merged))
