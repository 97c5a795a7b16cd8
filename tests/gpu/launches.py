"""List the launches of a model's run and their grids, at benchmark sizes; needs no GPU.

Calls that depend only on weights run once when a session opens; they are not listed.  On a GPU,
each launch can be timed alone.  A run takes longer than the sum because of copies, ONNX Runtime
and the host, and less because launches overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models.make import make
from tracea_graph import Options
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.ir import evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.families import (
    few_pixel_convolution,
    few_row_matmul,
    warpgroup_convolution,
    warpgroup_matmul,
)
from tracea_graph.kernels.gpu.kernel_selection import (
    FEW_PIXELS,
    FEW_ROWS,
    WARPGROUPS,
    WINDOWS,
    for_variant,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.launch import Argument, Launch
from tracea_graph.kernels.gpu.launch_order import constant_calls
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.release_choice import with_releases
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Buffer, Call, Program, View
from tracea_graph.onnx_io import Model, load
from tracea_graph.passes import UNMEASURED
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.passes.sparse.low_rank_exact import LOW_RANK_EXACT
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "SKIPPED",
    "Placed",
    "Run",
    "buffer_bytes",
    "launches",
    "listed",
    "number_of",
    "programs",
    "retiled",
    "runs",
    "timed",
]  # fmt: skip


SKIPPED = (DEAD_CHANNELS, LOW_RANK_EXACT, "column-block-gemm", "two-of-four-gemm")
"""Rules that read the zeros of hollow weights."""
_REFUSALS = {FEW_ROWS: few_row_matmul.refusal, WARPGROUPS: warpgroup_matmul.refusal,
             WINDOWS: warpgroup_convolution.refusal,
             FEW_PIXELS: few_pixel_convolution.refusal}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A kernel launch of a run: symbol, blocks, threads of a block, and operand shapes."""

    symbol: str
    blocks: int
    threads: int
    what: str
    call: Call
    variant: Variant
    launch: Launch
    program: Program
    sizes: dict[str, int]
    once: bool = False


def retiled(run: Run, variant: Variant) -> Run | None:
    """Return a run of a matmul or convolution with another tile; None if that does not fit it."""
    refusal = _REFUSALS.get(variant.template)
    if refusal is None or (variant.op, variant.dtype) != (run.call.op, run.call.dtype):
        return None
    if refusal(run.call, variant):
        return None
    launch = launch_of(run.call, variant, Target(CUDA, ARCHITECTURES["sm_90a"]))
    own, symbol = _bound(launch, run.program, run.sizes), launch.symbol.rpartition("__")[0]
    x, y, z = own.blocks({})
    return replace(run, symbol=symbol, blocks=x * y * z, variant=variant, launch=own)


def buffer_bytes(runs: Iterable[Run]) -> dict[int, int]:
    """Return the bytes of each buffer that launches address."""
    found = dict[int, int]()
    for argument in (a for run in runs for a in run.launch.arguments):
        if isinstance(argument.value, View):
            own = argument.value.buffer.index
            found[own] = max(found.get(own, 0), _bytes(argument))
    return found


@dataclass(frozen=True)
class Placed:
    """A program of a model: its operands by name, the sizes of its symbols, constant inputs."""

    program: Program
    region: Region
    sizes: dict[str, int]
    fixed: frozenset[int]


def programs(
    model: Model, precision: str, batch: int = 1, skip: tuple[str, ...] = (),
    shape: dict[str, int] | None = None, ranges: Mapping[str, float] = UNMEASURED,
) -> tuple[list[Placed], TileGraph, Options]:  # fmt: skip
    """Plan a model at the sizes it is timed at, without the rules to ``skip``.

    ``shape`` gives the values of symbols instead of ``batch``; ``ranges`` are the largest
    magnitudes of values, without which no matmul computes in 8-bit floats.
    """
    shapes = (shape or {"batch": batch},) if shape or batch > 1 else ()
    sizes = choose_bindings(model.graph, shapes, model.inputs)[0][0].symbols
    options = Options(target="cuda:sm_90", keep="all", precision=precision, max_error=1.0,
                      shapes=shapes, skip=skip)  # fmt: skip
    cost = CostModel(GPU.machine(()), sizes)
    planner = Planner(model.graph, options, sizes, cost=cost, ranges=ranges)
    assembly, plan = planner.assembled(planner.plan)
    for error in plan.trace.broken:
        raise error  # without the rule, the launches would be those of another plan
    found = list[Placed]()
    for item in assembly.placed:
        operands = item.region.operands
        specs = [assembly.graph.spec(v).shape or () for v in operands]
        bound = {s: evaluate(specs[i][a], sizes) for s, (i, a) in item.program.symbols.items()}
        fixed = frozenset(i for i, v in enumerate(operands) if assembly.graph.weight(v))
        found.append(Placed(item.program, item.region, bound, fixed))
    return found, assembly.graph, options


def launches(
    name: str, precision: str, folder: Path, batch: int = 1
) -> tuple[list[Run], list[str]]:
    """Return the launches of a zoo model's run, and the operators left to the CPU."""
    path = make(name, folder, hollow=True)
    model = load(path)
    # Masks are read from the file; its weights are nearly all zero, and are not judged by that.
    placed, graph, _ = programs(model, precision, batch, skip=SKIPPED)
    path.unlink()
    found = [run for one in placed for run in runs(one) if not run.once and run.blocks]
    left = [n.op for r in graph.regions() if not r.fused for n in r.nodes]
    return found, left


def runs(placed: Placed) -> Iterator[Run]:
    """Yield a launch for each call, with buffers numbered: inputs, outputs, temps."""
    program, sizes = placed.program, placed.sizes
    once = constant_calls(program.calls, placed.fixed)
    listed = with_releases(program, [launches_for(call) for call in program.calls])
    for call, own, done in zip(program.calls, listed, once, strict=True):
        choices = zip(own, variants_of(call), strict=True)
        launch, symbol, variant = next(
            (launch, symbol, variant)
            for (launch, symbol), (variant, when) in choices if evaluate(when, sizes) > 0
        )  # fmt: skip
        x, y, z = launch.blocks(sizes)
        seen = [_shape(v, sizes) for v in call.views if v is not None]
        bound, what = _bound(launch, program, sizes), " ".join(seen)
        call = for_variant(call, variant)
        yield Run(
            symbol, x * y * z, launch.threads, what, call, variant, bound, program, sizes, done
        )


def number_of(program: Program, buffer: Buffer) -> int:
    """Return the number of a buffer among inputs, outputs and temps."""
    first = {"input": 0, "output": len(program.inputs),
             "temp": len(program.inputs) + len(program.outputs)}  # fmt: skip
    return first[buffer.kind] + buffer.index


def _bound(launch: Launch, program: Program, sizes: dict[str, int]) -> Launch:
    """Evaluate a launch at given sizes."""

    def evaluated(argument: Argument) -> Argument:
        value = argument.value
        if isinstance(value, View):
            at = Buffer("temp", number_of(program, value.buffer))
            dims, steps = (tuple(evaluate(e, sizes) for e in some)
                           for some in (value.dims, value.strides))  # fmt: skip
            settled = View(at, dims, steps, evaluate(value.offset, sizes))
            window = argument.window.at(sizes) if argument.window else None
            return replace(argument, value=settled, window=window)
        if argument.kind == "f32" or value is None or isinstance(value, float):
            return argument
        return replace(argument, value=evaluate(value, sizes))

    x, y, z = launch.blocks(sizes)
    return replace(launch, grid=(x, y, z), arguments=tuple(map(evaluated, launch.arguments)))


def _shape(view: View, sizes: dict[str, int]) -> str:
    return "×".join(str(evaluate(d, sizes)) for d in view.dims)


def listed(name: str, precision: str, folder: Path, batch: int = 1) -> str:
    """Return the launches as lines of text; equal consecutive launches share a line."""
    return _lines(name, precision, *launches(name, precision, folder, batch), {})


def timed(name: str, precision: str, folder: Path, batch: int = 1) -> str:
    """Return the lines of :func:`listed` with the median time of each launch in µs.

    Each launch is timed alone, in CUDA graphs of 20.  Raises RuntimeError if there is no GPU.
    """
    from tests.gpu.device import Device, Loaded  # needs a driver

    found, left = launches(name, precision, folder, batch)
    device = Device()
    architecture = device.architecture
    calls = {run.symbol: run for run in found}
    target = Target(CUDA, architecture)
    texts = [emit_kernel(run.call, run.variant, target) for run in calls.values()]
    built = compile_sources(texts, [architecture.name])
    kernels = {symbol: Loaded(one) for symbol, one in zip(calls, built, strict=True)}
    times = dict[tuple[str, str], float]()
    for run in found:
        if (run.symbol, run.what) in times:
            continue
        sizes = buffer_bytes([run])
        places = [device.put(np.zeros(sizes.get(i, 0), np.uint8)) for i in range(max(sizes) + 1)]
        key = run.symbol, run.what
        times[key] = device.microseconds(kernels[run.symbol], run.launch, [places])
        device.free(places)
    return _lines(name, precision, found, left, times)


def _bytes(argument: Argument) -> int:
    """Return the size in bytes of a buffer up to the end of a view with known sizes."""
    view = argument.value
    assert isinstance(view, View)
    ends = sum(
        max(0, evaluate(d, {}) - 1) * max(0, evaluate(s, {}))
        for d, s in zip(view.dims, view.strides, strict=True)
    )
    return int((evaluate(view.offset, {}) + ends + 1) * argument.dtype.size)


def _lines(
    name: str, precision: str, found: list[Run], left: list[str],
    times: dict[tuple[str, str], float],
) -> str:  # fmt: skip
    few = sum(run.blocks < 132 for run in found)
    kinds = Counter(run.symbol.split("_")[2] for run in found)
    lines = [f"{name} {precision}: {len(found)} launches, {few} of them below 132 blocks; "
             + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()),
             f"  left to the CPU: {', '.join(left) or 'nothing'}"]  # fmt: skip
    if times:
        total = sum(times[run.symbol, run.what] for run in found)
        lines.append(f"  {total:.0f} µs, were each launch alone")
    for run in found:
        own = times.get((run.symbol, run.what))
        took = "" if own is None else f"{own:7.1f} µs"
        lines.append(f"  {took} {run.blocks:6} × {run.threads:3}  {run.symbol:60} {run.what}")
    return "\n".join(lines)
