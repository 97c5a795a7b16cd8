"""Time selected kernels, compared with torch if installed: ``python -m tests.gpu.timing``.

Words on the command line select the rows whose names contain all of them.

A tile ``chosen`` stands for the kernels that are chosen for a call: one launch for each of the
calls that it stands for.

A time is the median over replays of a CUDA graph of 20 launches that cycle through sets of buffers
larger in total than the GPU's L2; encoders' layers find their operands there.  torch runs in CUDA
graphs of its own, on equal shapes and types, in the same process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.gpu import (
    timing_attention,
    timing_caches,
    timing_images,
    timing_lines,
    timing_low_rank,
    timing_matmuls,
    timing_normed,
    timing_others,
)
from tests.gpu.device import Device, Loaded, checked
from tests.gpu.timing_row import CHOSEN, FAR, Row, Work
from tests.kernels.gpu.machine import Memory
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.composed_kernels import COMPOSED
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_selection import for_variant, variants_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import Built, compile_sources
from tracea_graph.kernels.gpu.variants import Variant, find
from tracea_graph.kernels.program import Call

LINE = 64
"""Elements of 128 bytes, where views start: so do the buffers of a program."""
ROWS = (
    *timing_attention.ROWS, *timing_others.ROWS, *timing_matmuls.ROWS, *timing_images.ROWS,
    *timing_caches.ROWS, *timing_lines.ROWS, *timing_low_rank.ROWS,
    *timing_normed.ROWS,
)  # fmt: skip


_MANY_NUMBERS = 1 << 20
"""Different random numbers of an array."""


class _Repeats(np.random.Generator):
    """Random numbers that repeat in large arrays, whose making would take longer than timing."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.some = super().standard_normal(_MANY_NUMBERS, np.float32)

    def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.resize(self.some, size)


@dataclass(frozen=True)
class Prepared:
    """A row with its call, on the buffers of a memory."""

    row: Row
    call: Call
    memory: Memory


def prepared(row: Row) -> Prepared:
    memory = Memory(LINE)
    return Prepared(row, row.make(memory, _Repeats())[0], memory)


def launched(call: Call, tile: str, target: Target) -> list[tuple[Call, Variant]]:
    """Return what is launched for a call by a tile: the call, or those that it stands for."""
    if tile != CHOSEN:
        return [(call, find(call, target.architecture, tile))]
    parts = next((a.words for a in CALLS.of(call).attributes if a.name == "part"), None)
    calls = [COMPOSED[call.op].part_of(call.having(part=part)) for part in parts or ()] or [call]
    found = list[tuple[Call, Variant]]()
    for one in calls:
        able = (v for v, when in variants_of(one) if isinstance(when, int) and when > 0
                and v.refusal(target.architecture) is None)  # fmt: skip
        variant = next(able)
        found.append((for_variant(one, variant), variant))
    return found


def built(device: Device, rows: Sequence[Prepared]) -> dict[tuple[str, str], list[Built]]:
    """Compile the kernels of all rows at once, by row and tile."""
    target, found = Target(CUDA, device.architecture), dict[tuple[str, str], list[KernelSource]]()
    for own in rows:
        for tile in own.row.tiles:
            found[own.row.name, tile] = [emit_kernel(*one, target)
                                         for one in launched(own.call, tile, target)]  # fmt: skip
    sources = [source for each in found.values() for source in each]
    made = iter(compile_sources(sources, [target.architecture.name]))
    return {key: [next(made) for _ in each] for key, each in found.items()}


def ours(device: Device, own: Prepared, tile: str, kernels: Sequence[Built]) -> tuple[float, int]:
    """Return the time of a call in µs, and the bytes that it moves."""
    target, memory = Target(CUDA, device.architecture), own.memory
    launches = [launch_of(*one, target) for one in launched(own.call, tile, target)]
    loaded = list(zip(map(Loaded, kernels), launches, strict=True))
    size = sum(b.nbytes for b in memory.buffers)
    sets = [[device.put(b) for b in memory.buffers] for _ in range(1 + own.row.far // size)]

    def work(buffers: Sequence[Any]) -> Callable[[Any], None]:
        def launch(stream: Any) -> None:
            for kernel, one in loaded:
                device.launch(kernel, one, buffers, stream)

        return launch

    time = device.replayed([work(buffers) for buffers in sets])
    for buffers in sets:
        device.free(buffers)
    return time, own.row.moved or size


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
    rows = [prepared(row) for row in chosen]
    kernels = built(device, rows)
    for own in rows:
        row = own.row
        peer = torchs(torch, row, row.torch) if torch else None
        if torch and row.whole:
            say(f"{row.name:40s} torch, whole  {torchs(torch, row, row.whole)():9.1f} us\n")
        for tile in row.tiles:
            own_kernels = kernels[row.name, tile]
            # a card that heats up is slower: torch's time is measured before and after
            before = peer() if peer else 0.0
            time, size = ours(device, own, tile, own_kernels)
            theirs = (before + peer()) / 2 if peer else 0.0
            rate = f"{row.flops / time / 1e6:7.1f} TFLOP/s" if row.flops else (
                f"{size / time / 1e3:7.0f} GB/s, {copied(device, size) / time:.2f} of a copy"
            )  # fmt: skip
            spilled = sum(kernel.facts.stack for kernel in own_kernels if kernel.facts)
            say(f"{row.name:40s} {tile:14s} {time:9.1f} us {rate}"
                f"{f' {spilled} bytes of local memory' if spilled else ''}")  # fmt: skip
            say(f"  torch {theirs:9.1f} us ({theirs / time:.2f}x)\n" if torch else "\n")


if __name__ == "__main__":
    main()
