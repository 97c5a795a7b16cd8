"""Measure what row tiling gains.

    python -m models.row_tiling MODEL.onnx… [--shape N=…] [--threads N,M]

Every program of a model is planned with and without row tiles
(``kernels.cpu.phases.tile_and_fuse``); both results are built with all rules and timed alternately
in one process.  The output lists the row tiles that the tile graph chooses, their predicted
traffic and gain, and the measured gain with its 99 % confidence bounds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tracea_graph import Options, api
from tracea_graph.check.paired_benchmark import ModelWithLibrary, PairedBenchmark
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu import phases as cpu
from tracea_graph.kernels.cpu.machine_model import measured_machine
from tracea_graph.kernels.cpu.phases.tile_and_fuse import TILE_AND_FUSE
from tracea_graph.onnx_io import load
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.program_row_tiling import row_tilings_in
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.passes import PlanRequest, phases
from tracea_graph.pipeline.model_inputs import gather_inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel

_PLAIN = Options(keep="all", verify=False, skip=(TILE_AND_FUSE,))
_PHASES = (*phases(PlanRequest(), cpu.structure_rules(PlanRequest())), *cpu.phases(PlanRequest()))
_NAMEABLE = (phase for phase in _PHASES if not phase.always)
_EVERY = (*(rule.name for phase in _NAMEABLE for rule in phase.passes), TILE_AND_FUSE)
"""All rules that may be named: without timing, row tiling runs only if it is requested."""


def _sizes(text: str) -> dict[str, int]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name: int(size) for name, _, size in pairs}


def _planned(path: Path, options: Options) -> tuple[list[str], float]:
    """Return the row tiles of a model's programs in words, and the µs they should save."""
    model = load(path)
    sizes = gather_inputs(model, options).timed[0].symbols
    cost = CostModel(measured_machine(), sizes)
    planner = Planner(model.graph, options, sizes, cost=cost)
    graph, words, gain = planner.plan().graph, list[str](), 0.0
    for region in graph.regions():
        if not isinstance(region.params, RegionParams) or not region.params.row_tiles:
            continue
        subgraph = Subgraph(graph, region)
        gain += planner.gain(graph, region, row_tiled=True)
        places = zip(
            region.params.row_tiles,
            row_tilings_in(subgraph, region.params, sizes, cost.machine.near),
            strict=True,
        )
        words += [
            f"steps {place.first}–{place.last}, {tiling.iterations} row tiles of "
            f"{tiling.rows} rows: "
            f"{tiling.saved / 1e6:.1f} MB saved, {tiling.streamed / 1e6:.1f} MB read again"
            for place, tiling in places
        ]
    return words, gain


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, build, time and print."""
    parser = argparse.ArgumentParser(prog="python -m models.row_tiling", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--shape", type=_sizes, help="sizes of symbolic dimensions")
    parser.add_argument("--threads", default="1", help="thread counts, default %(default)s")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each comparison")
    args = parser.parse_args(argv)
    counts = tuple(map(int, args.threads.split(",")))
    console = Console()
    table = Table("model", "threads", "plain ms", "tiled ms", "predicted", "measured", box=None)
    for path in args.models:
        plain = replace(_PLAIN, shapes=(args.shape,) if args.shape else ())
        row_tiled = replace(plain, skip=(), only=_EVERY)
        words, gain = _planned(path, row_tiled)
        console.print(f"{path.stem}: {'; '.join(words) or 'no row tiles'}")
        if not words:
            continue
        feeds = gather_inputs(load(path), plain).timing
        with tempfile.TemporaryDirectory(prefix="tracea-") as name:
            pair = []
            for kind, options in (("plain", plain), ("tiled", row_tiled)):
                report = api.optimize(path, replace(options, output=Path(name, f"{kind}.onnx")))
                if not report.library:
                    raise UsageError(f"{path} has no programs")
                pair.append(ModelWithLibrary(Path(name, f"{kind}.onnx"), Path(report.library)))
            seconds = args.seconds * len(counts) * len(feeds)
            with PairedBenchmark(Worker, feeds, counts, seconds) as bench:
                for (threads, _), found in bench.compare_all(pair[0], pair[1], seconds).items():
                    share = found.a_ms / max(found.a_ms - gain / 1e3, 1e-3)
                    table.add_row(
                        path.stem, str(threads), f"{found.a_ms:.3f}", f"{found.b_ms:.3f}",
                        f"{share:.3f}×", f"{found.median:.3f}× ({found.low:.3f}–{found.high:.3f})",
                    )  # fmt: skip
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
