"""Time tiles of a matrix multiplication or convolution by CUDA events, in a separate process.

Each of the two kernels is launched many times in a graph, one after another, as in a program.  If
weights are to be cold, the launches cycle through copies of the buffers that together exceed L2;
else all launches use the same buffers.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.config import Environment
from tracea_graph.errors import OutOfTime, WorkerError
from tracea_graph.ir import DType, TensorSpec, evaluate
from tracea_graph.kernels.gpu import device_main
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_selection import for_variant
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import Argument
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.schedule import TileSchedule
from tracea_graph.kernels.gpu.schedules.matmul_problem import TiledProblem, tiles_of, variant_run
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Buffer, Program, Schedule, View
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.tuning.tuning_problem import Case

__all__ = ["DeviceWorker", "EventFixture", "request_for"]

_LAUNCHES, _MOST_COPIES, _MOST_BYTES = 20, 256, 2 << 30
"""Minimum launches in a graph; maximum copies of the buffers, and maximum bytes of all copies."""
_ANSWER_SECONDS = 30.0
"""Seconds that an answer may take in addition to those requested: opening a GPU takes seconds."""
_TYPES = {DType.F16: "FLOAT16", DType.BF16: "BFLOAT16"}


class DeviceWorker:
    """A process that times kernels; see ``device_main.py``.  Raises WorkerError if it dies."""

    def __init__(self) -> None:
        command = (sys.executable, "-P", device_main.__file__)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the worker's answer to a request.

        Raises WorkerError if the worker died or answered with an error, and OutOfTime if it did
        not answer within ``seconds`` plus the time to open a GPU. The worker has then ended.
        """
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # it has died: what it says is read below
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            if not waiting.select(seconds + _ANSWER_SECONDS):
                self.stop()
                raise OutOfTime(f"the GPU's worker did not answer within {seconds:.0f} s")
        if not (line := process.stdout.readline()):
            said = process.stderr.read().decode(errors="replace").strip()
            self.stop()
            raise WorkerError(f"the GPU's worker died: {said or 'it printed nothing'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.stop()  # a kernel's fault leaves the context unusable
            raise WorkerError(answer["error"])
        return answer

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class EventFixture(AbstractContextManager["EventFixture"]):
    """Times the tiles of cases, one case at a time; use it in a ``with`` statement.

    Copies of the buffers are made until they exceed ``exceeded`` bytes together; 0 means one copy.
    ``sms`` is the number of multiprocessors of the GPU. Raises BuildError if a kernel does not
    compile.
    """

    def __init__(
        self, problems: Sequence[TiledProblem], level: str, environment: Environment,
        exceeded: int, sms: int,
    ) -> None:  # fmt: skip
        self._level, self._exceeded, self._sms = level, exceeded, sms
        self._worker: DeviceWorker | None = None
        self._scratch = ScratchFolder("tiles")
        folder = Path(self._scratch.__enter__())
        sources = {s.symbol: s for p in problems for s in sources_of(p, level).values()}
        self._files = dict[str, Path]()
        for i, built in enumerate(compile_sources(list(sources.values()), [level], environment)):
            self._files[built.source.symbol] = folder / f"{i}.cubin"
            (folder / f"{i}.cubin").write_bytes(built.data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._scratch.__exit__(kind, error, trace)

    def compare(
        self, case: Case, a: Schedule, b: Schedule, threads: int, pairs: int, seconds: float
    ) -> PairedTimes:
        """Interleave two schedules of a case, ignoring their ``max_rows``; return times per call.

        Raises WorkerError if either cannot run; the next call starts a new worker.
        """
        request = request_for(case, (a, b), self._level, self._files, self._exceeded, self._sms)
        worker = self._worker = self._worker or DeviceWorker()
        try:
            answer = worker.ask({**request, "pairs": pairs, "seconds": seconds}, seconds)
        except WorkerError:
            self._stop()
            raise
        return PairedTimes(tuple(answer["a"]), tuple(answer["b"]))

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker = None


@cache
def sources_of(problem: TiledProblem, level: str) -> Mapping[str, KernelSource]:
    """Return the sources of a problem's kernels, by the name of their tile."""
    target, call = Target(CUDA, ARCHITECTURES[level]), problem.call(1)
    return {v.tile: emit_kernel(for_variant(call, v), v, target) for v in tiles_of(problem, level)}


def request_for(
    case: Case, schedules: Sequence[Schedule], level: str, files: Mapping[str, Path],
    exceeded: int, sms: int,
) -> dict[str, Any]:  # fmt: skip
    """Return a request by which a worker compares schedules of a case."""
    problem = cast(TiledProblem, case.problem)
    program = problem.program(rows=case.rows if problem.static else "m")
    buffers, sizes = _buffers(program), {"m": case.rows}
    whole = [_bytes(spec, sizes) for _, spec in buffers]
    copies = ceil(exceeded / max(sum(whole), 1))
    index = {buffer: i for i, (buffer, _) in enumerate(buffers)}
    kernels = []
    for schedule in schedules:
        assert isinstance(schedule, TileSchedule)
        variant = variant_run(problem, case.rows, schedule, level)
        source = sources_of(problem, level)[variant.tile]
        kernels.append(_kernel(program, variant, level, source, files, index, sizes, sms))
    return {
        "kernels": kernels, "buffers": whole, "launches": _LAUNCHES,
        "copies": max(1, min(copies, _MOST_COPIES, _MOST_BYTES // max(sum(whole), 1))),
    }  # fmt: skip


def _kernel(
    program: Program, variant: Variant, level: str, source: KernelSource,
    files: Mapping[str, Path], index: Mapping[Buffer, int], sizes: Mapping[str, int],
    sms: int,
) -> dict[str, Any]:  # fmt: skip
    target = Target(CUDA, ARCHITECTURES[level])
    launch = launch_of(for_variant(program.calls[0], variant), variant, target)
    x, y, z = launch.blocks(sizes, sms)
    if (y, z) != (1, 1):
        raise WorkerError(f"{source.symbol} has a grid of several axes")
    arguments = [_argument(one, index, sizes) for one in launch.arguments]
    return {
        "file": os.fspath(files[source.symbol]), "symbol": source.symbol, "grid": x,
        "threads": launch.threads, "shared": launch.shared, "arguments": arguments,
    }  # fmt: skip


def _argument(
    one: Argument, index: Mapping[Buffer, int], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Describe a kernel's parameter: its bytes, an offset in a buffer, or a tensor map of one."""
    view = one.value
    if one.kind == "pointer" and isinstance(view, View):
        offset = evaluate(view.offset, sizes) * int(one.dtype.size)
        return {"buffer": index[view.buffer], "offset": offset}
    if one.kind in ("map", "pixels"):
        assert isinstance(view, View)
        made = one.map(sizes, lambda buffer: 0)
        told = {"type": _TYPES[made.dtype], "dims": made.dims, "strides": made.strides,
                "line": made.line,
                "box": made.box}  # fmt: skip
        if (window := made.window) is not None:
            told |= {"before": window.before, "after": window.after, "steps": window.steps}
        return {"buffer": index[view.buffer], "offset": made.address, "map": told}
    return {"bytes": one.words(sizes, lambda buffer: 0, None).hex()}


def _buffers(program: Program) -> list[tuple[Buffer, TensorSpec]]:
    """Return a program's buffers with their contents; the last input is not read."""
    inputs = [(Buffer("input", i), s) for i, s in enumerate(program.inputs[:-1])]
    outputs = [(Buffer("output", i), s) for i, s in enumerate(program.outputs)]
    temps = [(Buffer("temp", i), TensorSpec(t.dtype, (t.count,)))
             for i, t in enumerate(program.temps)]  # fmt: skip
    return [*inputs, *outputs, *temps]


def _bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    count = 1
    for dim in spec.shape or ():
        count *= evaluate(dim, sizes)
    return count * int((spec.dtype or DType.F32).size)
