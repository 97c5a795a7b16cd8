"""Region models the tile tests share."""

from __future__ import annotations

from tracea_graph.ir import DType, Extent, Node, TensorSpec
from tracea_graph.ttg import (
    AccessMap,
    Axis,
    DimIndex,
    IterationSpace,
    LoopWork,
    Region,
    RegionModel,
    TileGraph,
    index_along,
    index_whole,
)  # fmt: skip


def gemm(m: Extent, n: Extent, k: Extent, names: str = "ABC") -> RegionModel:
    """``C[m, n] = A[m, k] B[k, n]`` with an epilogue of three operations."""
    a, b, c = names
    return RegionModel(
        f"gemm{names}",
        IterationSpace((Axis("m", m), Axis("n", n), Axis("k", k, True))),
        (
            AccessMap(a, (index_along("m"), index_along("k")), (m, k)),
            AccessMap(b, (index_along("k"), index_along("n")), (k, n)),
        ),
        (AccessMap(c, (index_along("m"), index_along("n")), (m, n)),),
        (LoopWork(("m", "n", "k"), 2), LoopWork(("m", "n"), 3)),
        ("m",), ("n",), ("k",),
    )  # fmt: skip


def rows(m: int, n: int, read: str, write: str) -> RegionModel:
    """A softmax: each element needs its whole row."""
    return RegionModel(
        "rows",
        IterationSpace((Axis("m", m), Axis("n", n))),
        (AccessMap(read, (index_along("m"), index_whole(n)), (m, n)),),
        (AccessMap(write, (index_along("m"), index_along("n")), (m, n)),),
        (LoopWork(("m", "n"), 10),),
        ("m",),
        ("n",),
    )


def blur(m: int, n: int, read: str, write: str) -> RegionModel:
    """A window of three rows around each element."""
    around = DimIndex((("m", 1),), -1, 3)
    return RegionModel(
        "blur",
        IterationSpace((Axis("m", m), Axis("n", n))),
        (AccessMap(read, (around, index_along("n")), (m, n)),),
        (AccessMap(write, (index_along("m"), index_along("n")), (m, n)),),
        (LoopWork(("m", "n"), 3),),
        ("m",),
        ("n",),
    )


def named(models: list[RegionModel], outputs: tuple[str, ...] = ()) -> TileGraph:
    """A graph whose regions do what these models say; values nobody writes are its inputs."""
    nodes = [
        Node(
            m.name, tuple(a.value for a in m.reads), tuple(a.value for a in m.writes), name=m.name
        )
        for m in models
    ]
    specs = {
        a.value: TensorSpec(DType.F32, a.shape) for m in models for a in (*m.reads, *m.writes)
    }
    written = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs)
    ends = outputs or tuple(v for n in nodes for v in n.outputs if v not in read)
    inputs = [v for v in read if v not in written]
    graph = TileGraph.of_nodes(nodes, inputs, ends, {}, specs)

    def describe(region: Region, graph: TileGraph) -> RegionModel | None:
        return next((m for m in models if m.name == region.op), None)

    graph.model_of = describe
    return graph
