"""Building blocks of region models, shared by ONNX operators and custom ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracea_graph.ir import Expr, Extent
from tracea_graph.ttg.iteration_space import AccessMap, Axis, DimIndex, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = [
    "SOFTMAX_COST",
    "Shape",
    "access_map",
    "aligned_access",
    "axes_named",
    "constant_ints",
    "region_model",
    "reshape_groups",
    "rows_and_columns",
]

Shape = tuple[Extent, ...]
SOFTMAX_COST = 14
"""Vector instructions per score: scale, maximum, exponential, sum."""


def axes_named(prefix: str, shape: Shape) -> tuple[tuple[str, ...], IterationSpace]:
    """Return one parallel axis per dimension, named ``d0``, ``d1`` … for the prefix ``d``."""
    names = tuple(f"{prefix}{i}" for i in range(len(shape)))
    axes = (Axis(n, e) for n, e in zip(names, shape, strict=True))
    return names, IterationSpace(tuple(axes))


def access_map(
    graph: TileGraph, value: str, dims: Sequence[DimIndex], view: Shape | None = None
) -> AccessMap | None:
    """Return the access map of a value, or of a ``view`` of it, that ``dims`` describes.

    Returns None if the rank is unknown, or is not the number of ``dims``.
    """
    spec = graph.spec(value)
    shape = spec.shape if view is None else view
    if shape is None or len(shape) != len(dims):
        return None
    return AccessMap(value, tuple(dims), shape, spec.dtype.size if spec.dtype else 4.0)


def aligned_access(graph: TileGraph, value: str, names: Sequence[str]) -> AccessMap | None:
    """Return the access map of a value that broadcasts over the named axes, as in NumPy.

    Returns None if the value's rank is unknown, or above the number of axes.
    """
    shape = graph.spec(value).shape
    if shape is None or len(shape) > len(names):
        return None
    last = names[len(names) - len(shape) :]
    dims = [DimIndex() if e == 1 else index_along(n) for n, e in zip(last, shape, strict=True)]
    return access_map(graph, value, dims)


def rows_and_columns(
    shape: Shape, normed: object
) -> tuple[tuple[str, ...], str, tuple[Axis, ...]]:
    """Return the names of the row axes, the name of the result's column axis, and all axes.

    Without a norm, the column axis is ``n``.  With a norm, the results have the column axis ``j``
    and the input has the reduction axis ``n``, because each result reads its whole row.
    """
    rows, space = axes_named("m", shape[:-1])
    if not normed:
        return rows, "n", (*space.axes, Axis("n", shape[-1]))
    return rows, "j", (*space.axes, Axis("j", shape[-1]), Axis("n", shape[-1], True))


def constant_ints(
    region: Region, graph: TileGraph, attr: str, operand: int
) -> tuple[int, ...] | None:
    """Read integers from an attribute (older opsets) or a constant operand (newer opsets).

    Returns an empty tuple if neither is given, and None if the operand is not constant.
    """
    value = region.node.attrs.get(attr)
    if isinstance(value, int):
        return (value,)
    if isinstance(value, tuple):
        return tuple(int(v) for v in value)
    name = region.operands[operand] if operand < len(region.operands) else ""
    if not name:
        return ()
    weight = graph.weight(name)
    return None if weight is None else tuple(int(v) for v in weight.array().ravel())


def reshape_groups(x: Shape, y: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Group the dimensions of two shapes with equal numbers of elements, without those of size 1.

    The dimensions of a group have equal products in both shapes, and one of the shapes has a
    single dimension in it.  Returns None if the shapes cannot be grouped that way, or if symbols
    leave it undetermined.
    """
    left = [i for i, e in enumerate(x) if e != 1]
    right = [i for i, e in enumerate(y) if e != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := _factors(x, a)) != (q := _factors(y, b)):
            shorter, source = (a, left) if _divides(p, q) else (b, right)
            if not (_divides(p, q) or _divides(q, p)) or not source:
                return None
            shorter.append(source.pop(0))
        if len(a) > 1 and len(b) > 1:
            return None
        groups.append((a, b))
    return None if left or right else groups


Factors = tuple[int, Counter[str]]


def _factors(shape: Shape, dims: Sequence[int]) -> Factors:
    """Return a product as a number times symbols (other arithmetic counts as a symbol)."""
    factor, symbols = 1, Counter[str]()
    stack = [shape[i] for i in dims]
    while stack:
        extent = stack.pop()
        if isinstance(extent, int):
            factor *= extent
        elif isinstance(extent, Expr) and extent.op == "mul":
            stack += extent.args
        else:
            symbols[str(extent)] += 1
    return factor, symbols


def _divides(p: Factors, q: Factors) -> bool:
    return p[0] > 0 and q[0] % p[0] == 0 and p[1] <= q[1]


def region_model(
    region: Region, space: IterationSpace,
    reads: Sequence[AccessMap | None], writes: Sequence[AccessMap | None],
    work: tuple[LoopWork, ...], rows: tuple[str, ...] = (), cols: tuple[str, ...] = (),
    depth: tuple[str, ...] = (), batch: tuple[str, ...] = (),
) -> RegionModel | None:  # fmt: skip
    """Build the model of a region from its parts; None if an access is unknown."""
    known = [[a for a in maps if a is not None] for maps in (reads, writes)]
    if len(known[0]) < len(reads) or len(known[1]) < len(writes):
        return None
    return RegionModel(
        region.id, space, tuple(known[0]), tuple(known[1]), work, rows, cols, depth, batch
    )
