"""Run all launches of a zoo model on the device, without ONNX Runtime: check and time them.

Buffers lie as the library lays them out; inputs and results stay on the device.  The launches
become one CUDA graph with programmatic edges, whose back-to-back replays are timed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import driver

from models.make import make
from tests.gpu.device import Device, Loaded, checked
from tests.gpu.launches import Placed, Run, number_of, programs, retiled, runs
from tests.kernels.gpu.machine import NUMPY
from tracea_graph import Options
from tracea_graph.check.activation_ranges import largest_magnitudes
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.errors import UsageError
from tracea_graph.ir import TensorSpec, evaluate
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.kernel_selection import WARPGROUPS, WINDOWS
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import VARIANTS
from tracea_graph.onnx_io import Model, load
from tracea_graph.passes import UNMEASURED
from tracea_graph.pipeline.model_inputs import gather_inputs

__all__ = ["HALF", "Plan", "Whole", "planned"]

HALF = "-fp16"
"""End of the names of models whose inputs, results and weights are fp16."""
_ALIGN = 256
_REPLAYS, _ROUNDS = 20, 10


@dataclass(frozen=True)
class Plan:
    """A model as one program: a launch for each call, and its buffers.

    Buffers are numbered: inputs, outputs, temps.  ``sizes`` are in bytes; ``places`` are offsets
    in an arena of ``arena`` bytes, −1 for constants.  ``given`` are the arrays of inputs,
    ``results`` name and describe the outputs.  ``original`` is the model whose results they are
    compared with: the float32 form of a model in fp16.  ``flops`` are the operations of all
    products of a run.
    """

    original: Path
    runs: tuple[Run, ...]
    sizes: tuple[int, ...]
    places: tuple[int, ...]
    arena: int
    given: Mapping[int, Any]
    results: tuple[tuple[str, int, tuple[int, ...], Any], ...]
    feed: Mapping[str, Any]
    flops: float


def planned(name: str, precision: str, folder: Path, batch: int) -> Plan:
    """Plan a zoo model at a batch.  Raises UsageError if it does not become one program."""
    path = make(name, folder)
    model = load(path)
    ranges = _ranges(model) if precision == "fp8" else UNMEASURED
    placed, graph, options = programs(model, precision, batch, ranges=ranges)
    if len(placed) != 1:
        raise UsageError(f"{name} becomes {len(placed)} programs, not one")
    (one,) = placed
    program, region = one.program, one.region
    feed = next(iter(gather_inputs(model, options).timing.values()))
    weights = {v: graph.weight(v) for v in region.operands}
    given = {i: w.array() if (w := weights[v]) else feed[v] for i, v in enumerate(region.operands)}
    found = tuple(runs(one))
    sizes = _sizes(one)
    places, arena = _laid_out(one, found, sizes)
    first = len(program.inputs)
    results = tuple(
        (v, first + i, _dims(spec, one.sizes), NUMPY[spec.dtype])
        for i, (v, spec) in enumerate(zip(region.writes, program.outputs, strict=True))
        if spec.dtype
    )  # fmt: skip
    original = make(name.removesuffix(HALF), folder)
    flops = sum(_operations(run) for run in found if not run.once and run.blocks)
    return Plan(original, found, sizes, places, arena, given, results, feed, flops)


def _operations(run: Run) -> float:
    """Return the multiplications and additions of a launch's products, as the cost model counts.

    Work that is no product, such as norms, counts as none.
    """
    counted = GPU.catalog.topology(run.call, lambda extent: evaluate(extent, run.sizes))
    return counted.flops if counted.k > 1 else 0.0


def _ranges(model: Model) -> Mapping[str, float]:
    """Measure the values of a model on inputs of a batch of 1."""
    options = Options(target="cuda:sm_90")
    sizes = choose_bindings(model.graph, (), model.inputs)[0][0].symbols
    feeds = gather_inputs(model, options).verification
    return largest_magnitudes(model.path, model.graph, feeds, sizes)


def _dims(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, sizes) for d in spec.shape or ())


def _sizes(placed: Placed) -> tuple[int, ...]:
    program, sizes = placed.program, placed.sizes
    counts = [(math.prod(_dims(s, sizes)), s.dtype) for s in (*program.inputs, *program.outputs)]
    counts += [(max(0, evaluate(t.count, sizes)), t.dtype) for t in program.temps]
    return tuple(int(n * d.size) for n, d in counts if d)


def _laid_out(
    placed: Placed, found: Sequence[Run], sizes: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """Place buffers as the library does: each as low as it can be (``runtime/run.h``)."""
    program = placed.program
    constant = set(placed.fixed)
    for run in found:
        for operand, view in CALLS.of(run.call).each(run.call):
            if view is not None and operand.written and run.once:
                constant.add(number_of(program, view.buffer))
    tensors = len(program.inputs) + len(program.outputs)
    whole = [-(-n // _ALIGN) * _ALIGN for n in sizes]
    places, at = list[int](), 0
    for i in range(tensors):
        places.append(-1 if i in constant else at)
        at += 0 if i in constant else whole[i]
    base = at
    for i, temp in enumerate(program.temps):
        own = tensors + i
        places.append(-1)
        if own in constant:
            continue
        taken = sorted(
            (places[tensors + k], places[tensors + k] + whole[tensors + k])
            for k, other in enumerate(program.temps[:i])
            if places[tensors + k] >= 0 and other.first <= temp.last and temp.first <= other.last
        )
        places[own] = base
        for start, end in taken:
            if places[own] < end and start < places[own] + whole[own]:
                places[own] = end
        at = max(at, places[own] + whole[own])
    return tuple(places), at


class Whole:
    """A plan on a device: its kernels loaded, its constants made."""

    def __init__(self, device: Device, plan: Plan) -> None:
        self.device, self.plan = device, plan
        target = Target(CUDA, device.architecture)
        first = {run.symbol: run for run in plan.runs}
        texts = [emit_kernel(run.call, run.variant, target) for run in first.values()]
        built = compile_sources(texts, [device.architecture.name])
        self._kernels = {s: Loaded(one) for s, one in zip(first, built, strict=True)}
        self._arena = int(checked(driver.cuMemAlloc(max(plan.arena, 1))))
        self._own = {i: int(checked(driver.cuMemAlloc(max(plan.sizes[i], 1))))
                     for i, at in enumerate(plan.places) if at < 0}  # fmt: skip
        self._at = [self._own.get(i, self._arena + at) for i, at in enumerate(plan.places)]
        for i, array in plan.given.items():
            held = np.ascontiguousarray(array)
            if held.nbytes:
                checked(driver.cuMemcpyHtoD(self._at[i], held.ctypes.data, held.nbytes))
        self._stream = checked(driver.cuStreamCreate(1))
        self._start([run for run in plan.runs if run.once])

    def close(self) -> None:
        """Free the memory."""
        self.device.free([self._arena, *self._own.values()])

    def _start(self, some: Sequence[Run]) -> None:
        for run in some:
            self.device.launch(self._kernels[run.symbol], run.launch, self._at, self._stream)

    def error(self) -> tuple[float, float]:
        """Run once and compare with the original.

        Returns the largest error as a share of max|y|, and the smallest cosine of two results.
        """
        import onnxruntime

        self._start([run for run in self.plan.runs if not run.once])
        checked(driver.cuStreamSynchronize(self._stream))
        names = [name for name, *_ in self.plan.results]
        feed = {name: a.astype(np.float32) if a.dtype == np.float16 else a
                for name, a in self.plan.feed.items()}  # fmt: skip
        wanted = onnxruntime.InferenceSession(self.plan.original).run(names, feed)
        worst, least = 0.0, 1.0
        for (_, i, dims, dtype), right in zip(self.plan.results, wanted, strict=True):
            found = np.empty(dims, dtype)
            checked(driver.cuMemcpyDtoH(found.ctypes.data, self._at[i], found.nbytes))
            a, b = found.astype(np.float64), np.asarray(right, np.float64)
            worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() or 1)))
            lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
            least = min(least, float((a * b).sum()) / (lengths or 1))
        return worst, least

    def microseconds(self) -> float:
        """Return the time of one of many back-to-back replays in µs, median of rounds."""
        return self._replayed([run for run in self.plan.runs if not run.once])

    def alone(self) -> list[tuple[float, Run, int]]:
        """Return each different launch with its time alone in µs, and how often it comes."""
        found, times = dict[tuple[str, str], list[Run]](), list[tuple[float, Run, int]]()
        for run in self.plan.runs:
            if not run.once and run.blocks:
                found.setdefault((run.symbol, run.what), []).append(run)
        for same in found.values():
            chain = (same * _REPLAYS)[:_REPLAYS]
            times.append((self._replayed(chain) / _REPLAYS, same[0], len(same)))
        return sorted(times, key=lambda t: -t[0] * t[2])

    def tiles(self) -> list[tuple[Run, int, dict[str, float]]]:
        """Return each launch of warpgroups, how often it comes, and its time with each tile."""
        found = dict[tuple[str, str], list[Run]]()
        for run in self.plan.runs:
            if run.variant.template in (WARPGROUPS, WINDOWS) and not run.once and run.blocks:
                found.setdefault((run.symbol, run.what), []).append(run)
        tried = {
            key: [r for v in VARIANTS if v.template == same[0].variant.template
                  and (r := retiled(same[0], v)) is not None]
            for key, same in found.items()
        }  # fmt: skip
        target = Target(CUDA, self.device.architecture)
        new = {r.symbol: r for some in tried.values() for r in some}
        texts = [emit_kernel(r.call, r.variant, target) for r in new.values()]
        built = compile_sources(texts, [self.device.architecture.name])
        self._kernels |= {s: Loaded(one) for s, one in zip(new, built, strict=True)}
        return [
            (same[0], len(same), {
                r.variant.tile: self._replayed([r] * _REPLAYS) / _REPLAYS for r in tried[key]
            })
            for key, same in found.items()
        ]  # fmt: skip

    def _replayed(self, some: Sequence[Run]) -> float:
        stream, mode = self._stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream, mode))
        self._start(some)
        graph = checked(driver.cuStreamEndCapture(stream))
        replay = checked(driver.cuGraphInstantiate(graph, 0))
        begin, end = (checked(driver.cuEventCreate(0)) for _ in "be")
        times = []
        for _ in range(_ROUNDS):
            checked(driver.cuEventRecord(begin, stream))
            for _ in range(_REPLAYS):
                checked(driver.cuGraphLaunch(replay, stream))
            checked(driver.cuEventRecord(end, stream))
            checked(driver.cuEventSynchronize(end))
            times.append(1000 * float(checked(driver.cuEventElapsedTime(begin, end))) / _REPLAYS)
        checked(driver.cuGraphExecDestroy(replay))
        checked(driver.cuGraphDestroy(graph))
        return median(times)
