"""Time one token of a decoder on the device, beside the memory bound: weights and caches once.

    python -m tests.gpu.decoder [NAME…] [--bits 4|8|16] [--block 32|128] [--past 512] [--rows 1]
        [--parts] [--float] [--write FILE.md]

A token is one replay of a CUDA graph with the launches of the library; caches are written in
place.  With ``--rows``, a replay computes a prompt of so many tokens; times are those of a replay.
The bound is the time in which this GPU reads all matrices, scales and cached rows at the rate of a
kernel that only reads.  Weights are zeros, which takes the same time.  The decoders are those of
``models.decoder``; with ``--float`` inputs and outputs are float32.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cuda.bindings import driver

from models.decoder import build
from models.score import replace_table
from tests.gpu.chain import Chain, _parts
from tests.gpu.device import Device, Loaded, checked
from tests.gpu.launches import SKIPPED, Placed, Run, number_of, programs, runs
from tracea_graph.ir import evaluate
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.gpu_probes import probe_source, probes
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.onnx_io import load
from tracea_graph.ttg import TileGraph

NAMES = ("llama-3.2-1b", "qwen3-0.6b")
HEADS = ("decoder", "weights", "past", "launches", "µs a token", "tokens/s", "bound, µs", "share")
_READ, _ROUNDS = 1 << 30, 4
_PAST, _PRESENT = "past_key_values", "present"


def decoder(
    name: str, bits: int, block: int, past: int, half: bool, rows: int = 1
) -> tuple[Placed, TileGraph]:
    """Plan a decoder for ``rows`` tokens; raises RuntimeError unless it becomes one program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        model = build(name, block, 0, bits, half, hollow=True)
        onnx.save(model, path, save_as_external_data=True, location="decoder.data")
        total = past + rows
        sizes = {"batch": 1, "sequence": rows, "past_sequence": total, "total_sequence": total}
        found, graph, _ = programs(load(path), "fp16", skip=SKIPPED, shape=sizes)
    if len(found) != 1:
        raise RuntimeError(f"{name} becomes {len(found)} programs")
    return found[0], graph


def read_bytes(placed: Placed, graph: TileGraph, found: Iterable[Run], past: int) -> int:
    """Return the bytes of the matrices that launches multiply, and of the cached rows."""
    total = 0
    for run in found:
        if run.call.op not in ("gemm", "gemm_nbits"):
            continue
        named: dict[str, Any] = CALLS.of(run.call).named(run.call)
        half = 2 if run.call.op == "gemm" else 1
        total += _bytes(named["w"], half, run.sizes)
        total += sum(_bytes(named[n], 4, run.sizes) for n in ("scales", "zeros") if named.get(n))
    for value in placed.region.operands:
        if value.startswith(_PAST):
            spec = graph.spec(value)
            batch, heads, _, size = (evaluate(d, placed.sizes) if isinstance(d, int) else 1
                                     for d in spec.shape or ())  # fmt: skip
            total += int(batch * heads * past * size * (spec.dtype.size if spec.dtype else 0))
    return total


def _bytes(view: View, size: int, sizes: dict[str, int]) -> int:
    return size * int(np.prod([evaluate(d, sizes) for d in view.dims]))


def rate(device: Device) -> float:
    """Return the bytes per µs that a kernel reads from memory."""
    probe = next(p for p in probes(device.architecture) if p.name == "memory")
    (built,) = compile_sources([probe_source(probe, device.architecture)],
                               [device.architecture.name])  # fmt: skip
    kernel = Loaded(built)
    out, source = device.put(np.zeros(8, np.int64)), checked(driver.cuMemAlloc(_READ))
    kinds = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    values = int(out), _ROUNDS, int(source), _READ // 16
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    sms = checked(driver.cuDeviceGetAttribute(kind, device.handle))
    events = [checked(driver.cuEventCreate(0)) for _ in range(6)]
    for event in events:
        checked(driver.cuLaunchKernel(kernel.function, sms * probe.blocks, 1, 1, probe.threads,
                                      1, 1, 0, 0, (values, kinds), 0))  # fmt: skip
        checked(driver.cuEventRecord(event, 0))
    checked(driver.cuCtxSynchronize())
    times = [1000 * float(checked(driver.cuEventElapsedTime(a, b)))
             for a, b in pairwise(events)]  # fmt: skip
    device.free([out, source])
    return _ROUNDS * _READ / min(times)


def bind_caches(chain: Chain, placed: Placed, names: Sequence[str], past: int) -> None:
    """Let the caches be written in place, and the new row follow ``past`` rows."""
    operands, program = placed.region.operands, placed.program
    inputs = {v: number_of(program, Buffer("input", i)) for i, v in enumerate(operands)}
    for i, result in enumerate(names):
        if result.startswith(_PRESENT):
            source = inputs[result.replace(_PRESENT, _PAST, 1)]
            chain.places[number_of(program, Buffer("output", i))] = chain.places[source]
    for value, number in inputs.items():
        if value.endswith(".first"):
            place = np.array([past], np.int64)
            checked(driver.cuMemcpyHtoD(chain.places[number], place.ctypes.data, place.nbytes))


def main() -> None:
    """Print a line for each decoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--bits", type=int, nargs="*", default=(4, 16))
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--past", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--float", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked, device = parser.parse_args(), Device()
    fastest, rows = rate(device), list[Sequence[str]]()
    sys.stdout.write(f"{device.name}: reads {fastest / 1e6:.2f} TB/s\n")
    for name, bits in ((name, bits) for name in asked.names for bits in asked.bits):
        placed, graph = decoder(name, bits, asked.block, asked.past, not asked.float, asked.rows)
        found = [run for run in runs(placed) if not run.once and run.blocks]
        chain = Chain(device, found)
        bind_caches(chain, placed, placed.region.results, asked.past)
        time, late = chain.graph(found)
        bound = read_bytes(placed, graph, found, asked.past) / fastest
        what = f"{bits} bits" + f", blocks of {asked.block}" * (bits < 16)
        rows.append((name, what, f"{asked.past}", f"{len(found)}", f"{time:.0f}",
                     f"{1e6 * asked.rows / time:.0f}", f"{bound:.0f}",
                     f"{bound / time:.0%}"))  # fmt: skip
        sys.stdout.write("  ".join(rows[-1]) + f"  (p99 {late:.0f} µs)\n")
        sys.stdout.write("".join(f"{line}\n" for line in (_parts(chain) if asked.parts else ())))
        sys.stdout.flush()
        device.free(set(map(int, chain.places)))
    if asked.write:
        lines = [HEADS, ("---", "---", *("---:" for _ in HEADS[2:])), *rows]
        note = (f"{device.name}, one token at a time, replays of one graph, reads at "
                f"{fastest / 1e6:.2f} TB/s, {datetime.now(UTC):%Y-%m-%d}.")  # fmt: skip
        text = "\n".join([*("| " + " | ".join(row) + " |" for row in lines), "", note, ""])
        replace_table(asked.write, "decoder", text, "tests.gpu.decoder")


if __name__ == "__main__":
    main()
