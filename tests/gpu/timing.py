"""Time selected kernels, compared with torch if installed: ``python -m tests.gpu.timing``.

Words on the command line select the rows whose names contain all of them.

A time is the median over replays of a CUDA graph of 20 launches that cycle through sets of buffers
larger in total than the GPU's L2; encoders' layers find their operands there.  torch runs in CUDA
graphs of its own, on equal shapes and types, in the same process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.gpu import timing_caches, timing_images, timing_matmuls, timing_others
from tests.gpu.device import Device, Loaded, checked
from tests.gpu.timing_row import FAR, Row, Work
from tests.kernels.gpu.machine import Memory
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import Built, compile_sources
from tracea_graph.kernels.gpu.variants import find

LINE = 64
"""Elements of 128 bytes, where views start: so do the buffers of a program."""
ROWS = (
    *timing_others.ROWS, *timing_matmuls.ROWS, *timing_images.ROWS, *timing_caches.ROWS
)  # fmt: skip


def built(device: Device, rows: Sequence[Row]) -> dict[tuple[str, str], Built]:
    """Compile the kernels of all rows at once, by row and tile."""
    target, found = Target(CUDA, device.architecture), dict[tuple[str, str], KernelSource]()
    for row in rows:
        call, _ = row.make(Memory(), np.random.default_rng(0))
        for tile in row.tiles:
            variant = find(call, target.architecture, tile)
            found[row.name, tile] = emit_kernel(call, variant, target)
    made = compile_sources(list(found.values()), [target.architecture.name])
    return dict(zip(found, made, strict=True))


def ours(device: Device, row: Row, tile: str, kernel: Built) -> tuple[float, int]:
    """Return the time of a call in µs, and the size of its buffers in bytes."""
    memory, target = Memory(LINE), Target(CUDA, device.architecture)
    call, _ = row.make(memory, np.random.default_rng(0))
    launch = launch_of(call, find(call, target.architecture, tile), target)
    size = sum(b.nbytes for b in memory.buffers)
    sets = [[device.put(b) for b in memory.buffers] for _ in range(1 + row.far // size)]
    time = device.microseconds(Loaded(kernel), launch, sets)
    for places in sets:
        device.free(places)
    return time, size


def copied(device: Device, size: int) -> float:
    """Return the time in µs of a copy that reads and writes ``size`` bytes in all."""
    half = max(size // 2, 1)
    sets = [[device.put(np.zeros(half, np.uint8)) for _ in "xy"] for _ in range(1 + FAR // size)]
    time = device.replayed(
        [lambda stream, x=x, y=y: checked(driver.cuMemcpyDtoDAsync(y, x, half, stream))
         for x, y in sets]
    )  # fmt: skip
    for places in sets:
        device.free(places)
    return time


def torchs(torch: Any, row: Row, work: Work) -> Callable[[], float]:
    """Return a function that measures the time of a torch counterpart in µs."""
    function, operands = work(torch)
    size = sum(x.nbytes for x in operands)
    sets = [[x.clone() for x in operands] for _ in range(1 + row.far // (2 * size))]
    for one in sets:
        function(*one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(20):
            function(*sets[i % len(sets)])
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")

    def measured() -> float:
        times = []
        for _ in range(20):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / 20)
        return median(times)

    return measured


def main() -> None:
    """Print the table."""
    chosen = [r for r in ROWS if all(word in r.name for word in sys.argv[1:])]
    if not chosen:
        raise SystemExit(f"no row is named {' … '.join(sys.argv[1:])}")
    say = sys.stdout.write
    torch: Any = None
    if importlib.util.find_spec("torch"):
        import torch  # type: ignore[no-redef]

        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device="cuda")
    device = Device()
    say(f"{device.name}, {device.architecture.name}"
        f"{f', torch {torch.__version__}' if torch else ''}\n")  # fmt: skip
    kernels = built(device, chosen)
    for row in chosen:
        peer = torchs(torch, row, row.torch) if torch else None
        if torch and row.whole:
            say(f"{row.name:40s} torch, whole  {torchs(torch, row, row.whole)():9.1f} us\n")
        for tile in row.tiles:
            kernel = kernels[row.name, tile]
            # a card that heats up is slower: torch's time is measured before and after
            before = peer() if peer else 0.0
            time, size = ours(device, row, tile, kernel)
            theirs = (before + peer()) / 2 if peer else 0.0
            rate = f"{row.flops / time / 1e6:7.1f} TFLOP/s" if row.flops else (
                f"{size / time / 1e3:7.0f} GB/s, {copied(device, size) / time:.2f} of a copy"
            )  # fmt: skip
            spilled = kernel.facts.stack if kernel.facts else 0
            say(f"{row.name:40s} {tile:14s} {time:9.1f} us {rate}"
                f"{f' {spilled} bytes of local memory' if spilled else ''}")  # fmt: skip
            say(f"  torch {theirs:9.1f} us ({theirs / time:.2f}x)\n" if torch else "\n")


if __name__ == "__main__":
    main()
