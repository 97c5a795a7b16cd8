"""Measure how planning time grows: ``python -m models.scale [MODEL.onnx…] [--nodes N[,…]]``.

Graphs of N operators (layers of ten: product, bias, GELU, residual, SiLU) are imported and
scheduled without measuring; one region is expanded to a million tiles with their edges.  Times are
CPU times, each graph in its own process.  The last column divides by n log n and stays constant if
time grows like that.  Each model on the command line gets a row.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.pipeline.planning import Planner
from tracea_graph.ttg import (
    AccessMap,
    Axis,
    IterationSpace,
    RegionModel,
    expand_tiles,
    index_along,
)

__all__ = ["layers", "main", "million_tiles", "planned"]

WIDTH = 8


def layers(count: int) -> ModelProto:
    """Return a model of ``count`` operators in which every product has its own weight."""
    nodes: list[NodeProto] = []
    weights: dict[str, TensorProto] = {}

    def add(op: str, *operands: str) -> str:
        nodes.append(helper.make_node(op, operands, [f"v{len(nodes)}"], name=f"n{len(nodes)}"))
        return str(nodes[-1].output[0])

    def constant(name: str, array: object) -> str:
        weights[name] = numpy_helper.from_array(np.asarray(array, np.float32), name)
        return name

    root2, one, half = (constant(f"c{v}", v) for v in (math.sqrt(2), 1.0, 0.5))
    bias = constant("bias", np.zeros(WIDTH))
    x = "x"
    while len(nodes) + 10 <= count:
        w = constant(f"w{len(nodes)}", np.full((WIDTH, WIDTH), 1e-3 * len(nodes)))
        h = add("Add", add("MatMul", x, w), bias)
        phi = add("Add", add("Erf", add("Div", h, root2)), one)
        residual = add("Add", add("Mul", add("Mul", h, phi), half), x)
        x = add("Mul", residual, add("Sigmoid", residual))
    while len(nodes) < count:
        x = add("Relu", x)
    ends = [
        helper.make_tensor_value_info(v, TensorProto.FLOAT, ["batch", WIDTH]) for v in ("x", x)
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], list(weights.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def planned(path: str, schedule: bool = True) -> dict[str, float]:
    """Return seconds of import and schedule of one model, and the process's peak in MB."""
    start = time.process_time()
    model = load(Path(path))
    loaded = time.process_time()
    found = {"import": loaded - start, "nodes": float(len(model.graph.regions()))}
    if schedule:
        sizes = choose_bindings(model.graph, (), model.inputs)[0][0].symbols
        Planner(model.graph, Options(), sizes).plan()
        found["schedule"] = time.process_time() - loaded
    found["mb"] = _peak_mb()
    return found


def _peak_mb() -> float:
    """Return this process's peak; ``ru_maxrss`` would include that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return float(status["VmHWM"].split()[0]) / 1024


def million_tiles() -> dict[str, float]:
    """Return seconds and MB of a product's 2²⁰ tiles of 16 × 16 with every edge."""
    axes = (Axis("m", 1 << 14), Axis("n", 1 << 14), Axis("k", 512, True))
    sizes = {a.name: a.extent for a in axes}
    pairs = {"A": "mk", "B": "kn", "C": "mn"}
    maps = [
        AccessMap(v, tuple(map(index_along, names)), tuple(sizes[n] for n in names))
        for v, names in pairs.items()
    ]
    model = RegionModel("product", IterationSpace(axes), (maps[0], maps[1]), (maps[2],),
                        rows=("m",), cols=("n",), depth=("k",))  # fmt: skip
    before = _peak_mb()
    start = time.process_time()
    tiles = expand_tiles(model.bind({}), (16, 16, 0))
    edges = len(tiles.edges)
    seconds = time.process_time() - start
    return {
        "tiles": len(tiles), "edges": edges, "seconds": seconds, "mb": _peak_mb() - before,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m models.scale", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--nodes", default="1000,10000,100000", help="sizes, default %(default)s")
    parser.add_argument("--import-only", action="store_true", help="do not schedule")
    parser.add_argument("--json", action="store_true", help="print data instead of tables")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tracea-") as folder:
        for count in map(int, filter(None, args.nodes.split(","))):
            path = Path(folder, f"{count}.onnx")
            path.write_bytes(layers(count).SerializeToString())
            rows.append(_in_fresh_process(planned, str(path), not args.import_only))
    rows += [_in_fresh_process(planned, str(path), not args.import_only) for path in args.models]
    tiles = _in_fresh_process(million_tiles)
    if args.json:
        print(json.dumps({"graphs": rows, "tiles": tiles}))
        return 0
    table = Table("nodes", "import s", "schedule s", "peak MB", "µs / (n log₂ n)", box=None)
    for row in rows:
        n = row["nodes"]
        total = row["import"] + row.get("schedule", 0.0)
        table.add_row(
            f"{n:.0f}", f"{row['import']:.2f}", f"{row.get('schedule', math.nan):.2f}",
            f"{row['mb']:.0f}", f"{total / (n * math.log2(n)) * 1e6:.1f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(
        f"{tiles['tiles']} tiles, {tiles['edges']} edges: {tiles['seconds']:.2f} s, "
        f"{tiles['mb']:.0f} MB"
    )
    return 0


def _in_fresh_process(work: object, *args: object) -> dict[str, float]:
    """Call a function in a new process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: dict[str, float] = pool.apply(work, args)  # type: ignore[arg-type]
        return result


if __name__ == "__main__":
    raise SystemExit(main())
