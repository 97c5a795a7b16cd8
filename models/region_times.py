"""Time regions: ``python -m models.region_times MODEL.onnx… -o FILE.json``.

Every model is rewritten by all rules except clustering, so that each region is a node, and timed
node by node on one core; so is the original.  Equal regions are one row.  ``models.fit`` fits the
cost model to the file, and ``tests/policy`` checks the cost model against it:

    {"machine": {…}, "models": {name: {"bindings": {…}, "rows": [[what, value, count, us]…]}}}

``what`` is ``kernel`` or ``ort``, ``value`` a region's first result.  ``--precision bf16`` or
``int16`` adds kernels of that precision under ``NAME.bf16`` or ``NAME.int16``.  A file describes
one machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tracea_graph import Options, api
from tracea_graph.check.paired_benchmark import PROFILING_US
from tracea_graph.check.worker_process import Worker
from tracea_graph.kernels.cpu.machine_model import measured_machine
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.passes import WEIGHT_DEPENDENT
from tracea_graph.pipeline.model_inputs import gather_inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.repeated_blocks import region_signature

__all__ = ["APART", "MeasuredRegion", "Planned", "cost_model", "measured", "planned", "source_of"]

APART = Options(keep="all", verify=False, skip=("cluster-conv", "cluster"))
"""Options of the measured results."""
_PLANNED = dataclasses.replace(APART, skip=(*APART.skip, *WEIGHT_DEPENDENT))
"""Options if weights may be missing, without the rules that read their values."""
_RUNS = 25

Row = tuple[str, str, int, float]


@dataclass(frozen=True)
class Planned:
    """A model's graph before and after the rules, under the bindings it was timed with."""

    before: TileGraph
    after: TileGraph

    def regions(self) -> Iterator[tuple[str, TileGraph, Region]]:
        """Yield all that can be timed: kernels of the result, and ONNX Runtime's operators."""
        yield from (("kernel", self.after, r) for r in self.after.regions() if r.fused)
        yield from (("ort", self.before, r) for r in self.before.regions())

    def unique(self) -> dict[tuple[str, str], list[tuple[str, TileGraph, Region]]]:
        """Group equal regions by kind and signature."""
        found: dict[tuple[str, str], list[tuple[str, TileGraph, Region]]] = {}
        for what, graph, region in self.regions():
            found.setdefault((what, region_signature(graph, region)), []).append(
                (what, graph, region)
            )
        return found


@dataclass(frozen=True)
class MeasuredRegion:
    """One row and its region: the median µs of ``count`` equal ones."""

    model: str
    what: str
    graph: TileGraph
    region: Region
    count: int
    us: float


def planned(path: Path, bindings: dict[str, int], precision: str = "fp32") -> Planned:
    """Plan a model without measuring."""
    return _planned(path, tuple(bindings.items()), precision)


@lru_cache(maxsize=2)
def _planned(path: Path, bindings: tuple[tuple[str, int], ...], precision: str) -> Planned:
    graph = load(path).graph
    options = _rounding(_PLANNED, precision)
    return Planned(graph, Planner(graph, options, dict(bindings)).plan().graph)


def source_of(name: str) -> tuple[str, str]:
    """Return the model that was measured under a name, and its precision."""
    model, _, precision = name.partition(".")
    return model, precision or "fp32"


def _rounding(options: Options, precision: str) -> Options:
    """Return options for a precision; int16 is bf16 without the rules that round to bf16."""
    if precision == "fp32":
        return options
    skipped = ("gemm-bf16", "conv-bf16") if precision == "int16" else ()
    return dataclasses.replace(
        options, precision="bf16", max_error=1.0, skip=(*options.skip, *skipped)
    )


def measured(stored: dict[str, Any], name: str, path: Path) -> Iterator[MeasuredRegion]:
    """Yield the stored rows of a model that its present plan still has."""
    data = stored["models"][name]
    plan = planned(path, data["bindings"], source_of(name)[1])
    by_value = {(what, r.results[0]): (g, r) for what, g, r in plan.regions() if r.results}
    for what, value, count, us in data["rows"]:
        if (found := by_value.get((what, value))) is not None:
            yield MeasuredRegion(name, what, *found, count, us)


def _measure(path: Path, precision: str) -> dict[str, Any]:
    """Measure one model; return its rows."""
    model, options = load(path), _rounding(APART, precision)
    inputs = gather_inputs(model, APART)
    (label, feed), *_ = inputs.timing.items()
    bindings = dict(inputs.timed[0].symbols)
    with tempfile.TemporaryDirectory() as folder, Worker() as worker:
        out = Path(folder, "result.onnx")
        report = api.optimize(path, dataclasses.replace(options, output=out))
        library = Path(report.library) if report.library else None
        worker.open("original", path, level="off")
        worker.open("result", out, library)
        before, after = worker.profile_pair("original", "result", feed, _RUNS, warmup=3)
        results = {c.name: next(iter(c.outputs), "") for c in custom_op_nodes(load(out))}
    times = {("ort", t.name): t.us for t in before}
    times |= {("kernel", results[t.name]): t.us for t in after if t.name in results}
    rows = sorted(_rows(planned(path, bindings, precision), times))
    if precision != "fp32":  # ONNX Runtime's own times are in the fp32 entry
        rows = [row for row in rows if row[0] == "kernel"]
    print(f"{path.stem}, {label}: {len(rows)} rows")
    return {"bindings": bindings, "rows": rows}


def _rows(plan: Planned, times: dict[tuple[str, str], float]) -> Iterator[Row]:
    for (what, _), group in plan.unique().items():
        named = [(r.results[0] if what == "kernel" else r.node.name) for _, _, r in group]
        found = [times[what, name] for name in named if times.get((what, name))]
        if found:
            us = max(statistics.median(found) - PROFILING_US, 0.1)
            yield what, group[0][2].results[0], len(found), round(us, 2)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure models; keep the file's rows of others."""
    parser = argparse.ArgumentParser(prog="python -m models.region_times", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("-o", dest="out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--precision", choices=("fp32", "bf16", "int16"), default="fp32")
    args = parser.parse_args(argv)
    stored = json.loads(args.out.read_text()) if args.out.exists() else {"models": {}}
    stored.setdefault("machine", dataclasses.asdict(measured_machine()))
    suffix = "" if args.precision == "fp32" else f".{args.precision}"
    for path in args.models:
        stored["models"][path.stem + suffix] = _measure(path, args.precision)
        args.out.write_text(json.dumps(stored, sort_keys=True) + "\n")


def cost_model(stored: dict[str, Any], name: str) -> CostModel:
    """Return the cost model of the machine that measured."""
    return CostModel(Machine(**stored["machine"]), stored["models"][name]["bindings"])


if __name__ == "__main__":
    main()
