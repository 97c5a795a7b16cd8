"""Report how well the cost model predicts measurements: ``python -m models.fit FILE.json``.

For each kind of region it prints the number, the median error of predicted times and the factor
between measured and predicted, next to the error of a FLOP count at the best constant speed.
``--write`` fits ``policy/coefficients.json`` and stores it.  ``--zoo DIR`` has the models; without
it they are made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from models.fitting import FusionChoice, Prediction, fit, rechosen, repredicted
from models.make import make
from models.region_times import cost_model, measured, planned, source_of
from tracea_graph.ir import evaluate
from tracea_graph.ops.conv import ConvParams
from tracea_graph.policy.cost_coefficients import FILE, packaged_coefficients
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.repeated_blocks import region_signature

__all__ = [
    "LEAST_US",
    "choices",
    "flop_error",
    "median_error",
    "predict",
]

LEAST_US = 20.0
"""Shorter regions are skipped: the profiler's overhead per node is a large part of them."""


def predict(stored: Mapping[str, Any], name: str, path: Path) -> list[Prediction]:
    """Predict every row of a model that is long enough and still in the present plan."""
    cost, bindings = cost_model(dict(stored), name), stored["models"][name]["bindings"]
    return [
        Prediction(row, cost, cost(row.graph, row.region), _flops(row.graph, row.region, bindings))
        for row in measured(dict(stored), name, path)
        if row.us >= LEAST_US
    ]


def choices(stored: Mapping[str, Any], name: str, path: Path) -> list[FusionChoice]:
    """Return every kernel whose operators were all measured too."""
    cost, bindings = cost_model(dict(stored), name), stored["models"][name]["bindings"]
    rows = list(measured(dict(stored), name, path))
    model, precision = source_of(name)
    plain = measured(dict(stored), model, path)  # there onnxruntime's own operators were timed
    unfused = {region_signature(r.graph, r.region): r.us for r in plain if r.what == "ort"}
    before = planned(path, bindings, precision).before
    found = []
    for row in (r for r in rows if r.what == "kernel"):
        written = (v for n in row.region.nodes for v in n.outputs if v)
        found_unfused = {r.id: r for v in written if (r := before.producer(v)) is not None}
        regions = tuple(found_unfused.values())
        times = [unfused.get(region_signature(before, r), 0.0) for r in regions]
        if sum(times) + row.us >= LEAST_US:
            before_us = sum(cost(before, r) for r in regions)
            fused_us = cost(row.graph, row.region)
            found.append(FusionChoice(row, cost, before, regions, sum(times), fused_us, before_us))
    return found


def median_error(predictions: Sequence[Prediction]) -> float:
    """Return the median error of the cost model."""
    return statistics.median(p.error for p in predictions)


def flop_error(predictions: Sequence[Prediction]) -> float:
    """Return the median error of an operation count at the speed that fits best."""
    rated = [(p.row.us, p.flops) for p in predictions]
    speeds = [us / flops for us, flops in rated if flops]
    return min(
        statistics.median(abs(speed * flops / us - 1.0) for us, flops in rated) for speed in speeds
    )


def _flops(graph: TileGraph, region: Region, bindings: Mapping[str, int]) -> float:
    """Count operations, those of a convolution as two per tap and result."""
    params = region.params
    if isinstance(params, ConvParams) or region.op == "Conv":
        dims = [evaluate(d, bindings) for d in graph.spec(region.results[0]).shape or ()]
        weight = graph.spec(region.operands[1]).shape or ()
        taps = params.taps if params else prod(d for d in weight[1:] if isinstance(d, int))
        return 2.0 * prod(dims) * taps
    model = graph.model(region)
    return model.flops(bindings) if model else 0.0


def report(predictions: Sequence[Prediction], chosen: Sequence[FusionChoice]) -> str:
    """Return the table, and one line for all regions."""
    kinds: dict[str, list[Prediction]] = {}
    for p in predictions:
        kinds.setdefault(p.kind, []).append(p)
    lines = [f"{'kind':42} {'rows':>5} {'ms':>8} {'error':>6} {'factor':>7}"]
    for kind, rows in sorted(kinds.items(), key=lambda kv: -sum(_total(p) for p in kv[1])):
        factor = statistics.median(p.row.us / p.us for p in rows)
        spent = sum(map(_total, rows)) * 1e-3
        lines.append(
            f"{kind:42} {len(rows):5} {spent:8.1f} {median_error(rows):6.0%} {factor:7.2f}"
        )
    right = sum(c.right for c in chosen)
    lines += [
        f"{len(predictions)} regions of {LEAST_US:g} µs or more: median error "
        f"{median_error(predictions):.1%}; of a count of operations {flop_error(predictions):.1%}",
        f"fused or not: within a tenth of the better for {right} of {len(chosen)} kernels "
        f"({right / max(len(chosen), 1):.1%})",
    ]
    return "\n".join(lines)


def _total(p: Prediction) -> float:
    return p.row.us * p.row.count


def main(argv: Sequence[str] | None = None) -> None:
    """Print how well a file of measurements is predicted."""
    parser = argparse.ArgumentParser(prog="python -m models.fit", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.json")
    parser.add_argument("--zoo", type=Path, metavar="DIR")
    parser.add_argument("--only", action="append", default=[], metavar="MODEL")
    parser.add_argument(
        "--write", action="store_true", help="fit the coefficients, and store them"
    )
    args = parser.parse_args(argv)
    stored = json.loads(args.file.read_text())
    predictions, chosen = list[Prediction](), list[FusionChoice]()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only or stored["models"]:
            model, _ = source_of(name)
            made = args.zoo / f"{model}.onnx" if args.zoo else None
            path = made or make(model, Path(folder), hollow=True)
            predictions += predict(stored, name, path)
            chosen += choices(stored, name, path)
    print(report(predictions, chosen))
    if args.write:
        coefficients = fit(packaged_coefficients(), predictions, chosen)
        FILE.write_text(coefficients.to_json(), encoding="utf-8")
        print(f"wrote {FILE}, with which")
        predictions = [repredicted(p, coefficients) for p in predictions]
        print(report(predictions, [rechosen(c, coefficients) for c in chosen]))


if __name__ == "__main__":
    main()
