"""Time a model's run on the device alone: its launches in one CUDA graph, as in the library.

    python -m tests.gpu.chain [NAME…] [--precision fp16] [--parts] [--tiles] [--streams N]
                              [--concurrent-runs N] [--write FILE.md]

Prints the launches of a run, the µs of a replay with programmatic edges and with full ones, and
with ``--parts`` by how much the replay shrinks without the launches of each kind: what they cost
in their place.  ``--tiles`` tries every tile of each matmul and convolution of few rows in its
place.  With ``--streams``, all times are those of so many runs at a time, divided by their number;
they share all buffers.  ``--concurrent-runs`` takes the tiles of that option of the product.
Buffers hold zeros and do not share memory; replays follow one another: weights that fit L2 stay in
it.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import driver

from models.score import replace_table
from tests.gpu.device import Device, Loaded, checked, encoded
from tests.gpu.launches import Run, buffer_bytes, launches, retiled
from tracea_graph.ir import evaluate
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.kernel_selection import FEW_PIXELS, FEW_ROWS
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.schedule import TileSchedule
from tracea_graph.kernels.gpu.variants import VARIANTS
from tracea_graph.tuning.tuning_problem import Case

NAMES = ("minilm", "bert-base", "vit-base", "gpt2", "resnet50", "mobilenetv2")
_REPLAYS = 60


@dataclass
class Chain:
    """The launches of a run, their kernels and buffers on a device."""

    device: Device
    runs: list[Run]
    streams: int = 1

    def __post_init__(self) -> None:
        self.kernels: dict[str, Loaded] = {}
        self.load(self.runs)
        sizes = buffer_bytes(self.runs)
        self.places = [
            self.device.put(np.zeros(sizes.get(i, 0), np.uint8)) for i in range(max(sizes) + 1)
        ]

    def load(self, runs: Sequence[Run]) -> None:
        """Compile and load the kernels of launches."""
        architecture = self.device.architecture
        target = Target(CUDA, architecture)
        new = {run.symbol: run for run in runs if run.symbol not in self.kernels}
        texts = [
            replace(emit_kernel(run.call, run.variant, target), shared=run.launch.shared)
            for run in new.values()
        ]
        built = compile_sources(texts, [architecture.name])
        for symbol, one in zip(new, built, strict=True):
            if one.refused:
                raise RuntimeError(f"{symbol}: {one.refused}")
            self.kernels[symbol] = Loaded(one)

    def microseconds(self, runs: Sequence[Run], programmatic: bool = True) -> float:
        """Return the median time of a replay of some launches in a row, in µs.

        With several streams it is the time of a replay in each, divided by their number.
        """
        if self.streams > 1:
            return self._together(runs, programmatic)
        return self.graph(runs, programmatic)[0]

    def _together(self, runs: Sequence[Run], programmatic: bool) -> float:
        graph, _held = self._graph(runs, programmatic)
        pairs = [(checked(driver.cuGraphInstantiate(graph, 0)), checked(driver.cuStreamCreate(1)))
                 for _ in range(self.streams)]  # fmt: skip
        times = []
        for _ in range(4):
            start = time.perf_counter()
            for _ in range(_REPLAYS // 2):
                for pair in pairs:
                    checked(driver.cuGraphLaunch(*pair))
            checked(driver.cuCtxSynchronize())
            times.append(1e6 * (time.perf_counter() - start) / (_REPLAYS // 2) / self.streams)
        for replay, stream in pairs:
            checked(driver.cuGraphExecDestroy(replay))
            checked(driver.cuStreamDestroy(stream))
        checked(driver.cuGraphDestroy(graph))
        return median(times[1:])

    def graph(self, runs: Sequence[Run], programmatic: bool = True) -> tuple[float, float]:
        """Return the median and the 99th percentile of replays, in µs."""
        graph, _held = self._graph(runs, programmatic)
        replay = checked(driver.cuGraphInstantiate(graph, 0))
        stream = checked(driver.cuStreamCreate(1))
        events = [checked(driver.cuEventCreate(0)) for _ in range(_REPLAYS + 1)]
        for _ in range(5):
            checked(driver.cuGraphLaunch(replay, stream))
        for event in events:
            checked(driver.cuEventRecord(event, stream))
            checked(driver.cuGraphLaunch(replay, stream))
        checked(driver.cuStreamSynchronize(stream))
        times = sorted(
            1000 * float(checked(driver.cuEventElapsedTime(a, b))) for a, b in pairwise(events)
        )
        for event in events:
            checked(driver.cuEventDestroy(event))
        checked(driver.cuGraphExecDestroy(replay))
        checked(driver.cuGraphDestroy(graph))
        return median(times), times[len(times) * 99 // 100]

    def _graph(self, runs: Sequence[Run], programmatic: bool) -> tuple[Any, list[Any]]:
        """Return a graph of launches in a row, and the arguments that it refers to."""
        graph = checked(driver.cuGraphCreate(0))
        held: list[Any] = []
        before: Any = None
        most: dict[str, int] = {}
        for run in runs:
            node, words = self._node(graph, run, most)
            held.append(words)
            if before is not None:
                edge = driver.CUgraphEdgeData()
                if programmatic:
                    edge.from_port = 1
                    edge.type = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
                checked(driver.cuGraphAddDependencies(graph, [before], [node], [edge], 1))
            before = node
        return graph, held

    def _node(self, graph: Any, run: Run, most: dict[str, int]) -> tuple[Any, Any]:
        kernel, launch = self.kernels[run.symbol], run.launch
        most[run.symbol] = max(most.get(run.symbol, 48 << 10), launch.shared)
        if launch.shared > 48 << 10:
            kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(kernel.function, kind, most[run.symbol]))
        made = launch.words({}, lambda buffer: int(self.places[buffer.index]), encoded)
        words = [ctypes.create_string_buffer(w, len(w)) for w in made]
        held = (ctypes.c_void_p * len(words))(*(ctypes.addressof(w) for w in words))
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = kernel.function
        node.gridDimX, node.gridDimY, node.gridDimZ = launch.blocks({})
        node.blockDimX, node.blockDimY, node.blockDimZ = launch.threads, 1, 1
        node.sharedMemBytes, node.kernelParams = launch.shared, ctypes.addressof(held)
        return checked(driver.cuGraphAddKernelNode(graph, None, 0, node)), (words, held)


def _shared(run: Run, count: int) -> Run:
    """Return a launch with the tile for ``count`` concurrent runs, if it has one of its own."""
    space = GPU.schedule_space
    problem = space.problem_of(run.program, run.call) if space else None
    if space is None or problem is None or run.variant.template != FEW_ROWS:
        return run
    sizes = [evaluate(n, run.sizes) for n in run.call.views[0].dims]  # type: ignore[union-attr]
    schedule = space.concurrent_schedule(Case(problem, problem.rows_of(sizes)), count)
    if not isinstance(schedule, TileSchedule):
        return run
    tile = {"n": schedule.n, "split": schedule.split}
    found = next(v for v in VARIANTS if (v.template, v.dtype) == (FEW_ROWS, run.call.dtype)
                 and v.params == tile)  # fmt: skip
    return retiled(run, found) or run


def _parts(chain: Chain) -> list[str]:
    """Return a line for each kind of launch: how many, and what one costs in its place."""
    whole, lines = chain.microseconds(chain.runs), []
    for key in dict.fromkeys((r.symbol, r.what) for r in chain.runs):
        rest = [r for r in chain.runs if (r.symbol, r.what) != key]
        count = len(chain.runs) - len(rest)
        if rest:
            cost = (whole - chain.microseconds(rest)) / count
            lines.append(f"  {count:3} × {cost:6.2f} µs  {key[0]:58} {key[1]}")
    return lines


def _tiles(chain: Chain) -> list[str]:
    """Return a line for each launch of few rows: replays with each of its tiles; keep the best."""
    lines = []
    few = [r for r in chain.runs if r.variant.template in (FEW_ROWS, FEW_PIXELS)]
    for key in dict.fromkeys((r.symbol, r.what) for r in few):
        own = next(r for r in chain.runs if (r.symbol, r.what) == key)
        found = dict[str, tuple[float, list[Run]]]()
        for variant in (v for v in VARIANTS if v.template == own.variant.template):
            if (variant.op, variant.dtype) != (own.call.op, own.call.dtype):
                continue
            tried = [retiled(r, variant) if (r.symbol, r.what) == key else r for r in chain.runs]
            if None in tried:
                continue
            runs = [r for r in tried if r is not None]
            try:
                chain.load(runs)
            except RuntimeError:
                continue
            found[variant.tile] = chain.microseconds(runs), runs
        best = min(found, key=lambda tile: found[tile][0])
        chain.runs = found[best][1]
        times = ", ".join(f"{tile} {time:.1f}" for tile, (time, _) in sorted(found.items()))
        lines.append(f"  {own.variant.tile} -> {best}: {key[1]}\n      {times}")
    return lines


def main() -> None:
    """Print lines for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--streams", type=int, default=1, metavar="N")
    parser.add_argument("--concurrent-runs", type=int, default=1, metavar="N")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    if asked.write and (asked.streams > 1 or asked.concurrent_runs > 1):
        parser.error("--write records one run at a time")
    device = Device()
    rows = list[Sequence[str]]()
    for name in asked.names:
        with tempfile.TemporaryDirectory() as folder:
            runs, _ = launches(name, asked.precision, Path(folder))
        if asked.concurrent_runs > 1:
            runs = [_shared(run, asked.concurrent_runs) for run in runs]
        chain = Chain(device, runs, asked.streams)
        late = chain.graph(runs)[1]
        half = chain.microseconds(runs)
        full = chain.microseconds(runs, programmatic=False)
        rows.append((name, f"{len(runs)}", f"{half:.0f}", f"{late:.0f}", f"{full:.0f}"))
        lines = [f"{name:12} {asked.precision} {len(runs):3} launches {half:7.1f} µs (p99 "
                 f"{late:.1f}), {full:.1f} with full edges"]  # fmt: skip
        lines += _tiles(chain) if asked.tiles else []
        lines += _parts(chain) if asked.parts else []
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        device.free(chain.places)
    if asked.write:
        replace_table(asked.write, "chain", table(rows, device.name), "tests.gpu.chain")


def table(rows: Sequence[Sequence[str]], device: str) -> str:
    """Return rows as Markdown, with what they were measured on."""
    heads = ("model", "launches", "µs", "99th percentile", "full edges, µs")
    lines = [heads, ("---", *("---:" for _ in heads[1:])), *rows]
    note = f"{device}, batch 1, replays of one graph, {datetime.now(UTC):%Y-%m-%d}."
    return "\n".join([*("| " + " | ".join(row) + " |" for row in lines), "", note, ""])


if __name__ == "__main__":
    main()
