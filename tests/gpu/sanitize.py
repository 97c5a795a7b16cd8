"""Run every GPU kernel, programs of several, and two models under NVIDIA's compute-sanitizer.

    python -m tests.gpu.sanitize [WORD…] [--tools memcheck,racecheck,initcheck,synccheck]
                                 [--models tiny-bert,…] [--jobs N] [--seconds 300] [--all]

Kernels are compiled first, outside of the sanitizer.  Then each tool watches shares of the cases
of ``tests/kernels/gpu``, many processes at once, each with a time limit.  A kernel is launched
once, at the case of the most threads; ``--all`` takes every case, WORDs those whose names have
one.  A buffer on the device ends with the 16 bytes in which its view ends: an asynchronous copy
of fewer bytes counts as 16 for the sanitizer, although the GPU does not read the others.  The 16
bytes in which a view begins are filled too, because kernels read rows that start anywhere by
aligned vectors.  What a case does not fill is left as the allocator gives it.  Programs
(``test_programs``) run without WORDS.  Models run three times, so that their launches also run as
a graph.

Prints what was found, and for each tool how many cases it has judged.  Ends with 1 if there are
findings, or cases without a verdict.  Needs a GPU, and compute-sanitizer in the search path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from models.make import make
from tests.gpu.device import Device, Loaded, checked
from tests.gpu.test_programs import CASES as PROGRAMS
from tests.kernels.gpu.all_cases import CASES
from tests.kernels.gpu.cases import Case
from tests.kernels.gpu.machine import POISON, Memory
from tests.kernels.gpu.programs import run_program
from tracea_graph import Options, api
from tracea_graph.config import usable_processors
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import Variant, find
from tracea_graph.kernels.program import Call
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

TOOLS = ("racecheck", "initcheck", "memcheck", "synccheck")
MODELS = ("tiny-bert", "tiny-bert-qdq")
_CASE, _DONE, _MARK = "case ", "done ", "========="


@dataclass(frozen=True)
class _Job:
    """A tool, and what it watches: ``arguments`` of a process that runs ``names``."""

    tool: str
    arguments: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Verdict:
    """What came of a job: how many names are without a finding, what the tool said of the others,
    and the seconds it took."""

    job: _Job
    judged: int
    findings: tuple[str, ...]
    seconds: float


def _prepared(case: Case, tile: str, target: Target) -> tuple[Memory, Launch, KernelSource]:
    memory = Memory()
    call, _ = case.make(memory, np.random.default_rng(0))
    variant = find(call, target.architecture, tile)
    return memory, launch_of(call, variant, target), emit_kernel(call, variant, target)


def _chosen(words: Sequence[str], every: bool, target: Target) -> tuple[list[int], list[str]]:
    """Compile kernels; return which (case, tile) pairs run, by number, and their names."""
    best: dict[Any, tuple[int, int]] = {}
    sources, pairs = list[KernelSource](), _pairs()
    for number, (case, tile) in enumerate(pairs):
        if words and not any(word in case.name for word in words):
            continue
        _, launch, source = _prepared(case, tile, target)
        threads = int(np.prod(launch.blocks({}))) * launch.threads
        key = number if every else launch.symbol
        if threads and (key not in best or best[key][0] < threads):
            best[key] = threads, number
            sources.append(source)
    compile_sources(sources, [target.architecture.name])
    numbers = sorted(number for _, number in best.values())
    return numbers, [f"{pairs[n][0].name} {pairs[n][1]}" for n in numbers]


def _pairs() -> list[tuple[Case, str]]:
    return [(case, tile) for case in CASES for tile in case.tiles]


# ---- watched processes ----------------------------------------------------------------------


def _run_cases(numbers: Sequence[int]) -> None:
    """Launch cases once each; print a line before and after each."""
    device, pairs = Device(), _pairs()
    target = Target(CUDA, device.architecture)
    prepared = [_prepared(*pairs[number], target) for number in numbers]
    built = compile_sources([source for *_, source in prepared], [target.architecture.name])
    for number, (memory, launch, _), one in zip(numbers, prepared, built, strict=True):
        name = f"{pairs[number][0].name} {pairs[number][1]}"
        _say(_CASE + name)
        places = [_lent(memory, i) for i in range(len(memory.buffers))]
        device.launch(Loaded(one), launch, places)
        checked(driver.cuCtxSynchronize())
        device.free(places)
        _say(_DONE + name)


def _lent(memory: Memory, index: int) -> Any:
    """Allocate a buffer, whole 16 bytes around its view; copy them if the case filled it."""
    ((view, dtype),) = [pair for pair in memory.views if pair[0].buffer.index == index]
    sides = [
        (evaluate(d, {}), evaluate(s, {})) for d, s in zip(view.dims, view.strides, strict=True)
    ]
    span = 0 if 0 in view.dims else 1 + sum((d - 1) * s for d, s in sides)
    begin = evaluate(view.offset, {}) * dtype.itemsize
    first = begin // 16 * 16
    last = -(-(begin + span * dtype.itemsize) // 16) * 16
    place = checked(driver.cuMemAlloc(max(last, 16)))
    shown = memory.buffers[index][first:last]
    if (shown != POISON).any():
        checked(driver.cuMemcpyHtoD(int(place) + first, shown.ctypes.data, shown.nbytes))
    return place


def _run_programs() -> None:
    """Run the programs in fp16, whose scratch keeps what kernels write; print lines as above."""
    device = Device()
    target = Target(CUDA, device.architecture)

    def watched(chosen: Sequence[tuple[Call, Variant]], memory: Memory) -> None:
        sources = [emit_kernel(call, variant, target) for call, variant in chosen]
        built = compile_sources(sources, [target.architecture.name])
        places = [
            device.put(held) if (held != POISON).any() else checked(driver.cuMemAlloc(held.nbytes))
            for held in memory.buffers
        ]
        for (call, variant), one in zip(chosen, built, strict=True):
            device.launch(Loaded(one), launch_of(call, variant, target), places)
        checked(driver.cuCtxSynchronize())
        device.free(places)

    for name, (params, arrays) in PROGRAMS.items():
        _say(_CASE + name)
        run_program(params, arrays, DType.F16, target.architecture, watched)
        _say(_DONE + name)


def _run_model(result: Path, original: Path) -> None:
    """Run an optimized model three times: by launches, to build a graph, by the graph."""
    session = api.session(result)
    feeds = gather_inputs(load(original), Options()).timing.values()
    _say(_CASE + original.stem)
    for feed in feeds:
        for _ in range(3):
            session.run(None, feed)
    del session
    _say(_DONE + original.stem)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---- the sanitizer --------------------------------------------------------------------------


def _watched(job: _Job, seconds: float) -> _Verdict:
    """Run a job under its tool, for ``seconds`` at most."""
    command = ["compute-sanitizer", "--tool", job.tool, "--print-limit", "20"]
    command += [sys.executable, "-m", "tests.gpu.sanitize", *job.arguments]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        judged, findings = _judged(job, said.read().splitlines())
    return _Verdict(job, judged, findings, time.perf_counter() - start)


def _judged(job: _Job, lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return how many cases a tool's output has judged, and what it reports, by running case."""
    current, done, found = "start", set[str](), dict[str, list[str]]()
    for line in lines:
        if line.startswith(_CASE):
            current = line[len(_CASE) :]
        elif line.startswith(_DONE):
            done.add(line[len(_DONE) :])
        elif line.startswith(_MARK) and not _quiet(line):
            found.setdefault(current, []).append(line[len(_MARK) :].strip())
    findings = [f"{name}: {' | '.join(said[:6])[:600]}" for name, said in found.items()]
    if not findings and done < set(job.names):
        findings = [f"{current}: no verdict: {' | '.join(lines[-3:])[-600:]}"]
    return len(done - found.keys()), tuple(findings)


def _quiet(line: str) -> bool:
    said = line[len(_MARK) :].strip()
    return said in ("", "COMPUTE-SANITIZER") or "SUMMARY: " in said


def _verdicts(jobs: Sequence[_Job], processes: int, seconds: float) -> int:
    """Run jobs and print findings and a line for each tool; return 1 unless all is well."""
    found = dict[str, list[_Verdict]]()
    with ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(_watched, job, seconds) for job in jobs]
        for verdict in map(Future[_Verdict].result, as_completed(running)):
            found.setdefault(verdict.job.tool, []).append(verdict)
            for line in verdict.findings:
                _say(f"{verdict.job.tool}: {line}")
    for tool, said in found.items():
        judged, wanted = sum(v.judged for v in said), sum(len(v.job.names) for v in said)
        longest = max(v.seconds for v in said)
        _say(f"{tool}: {judged} of {wanted} without a finding, in processes of {longest:.0f} s")
    return int(any(v.findings for said in found.values() for v in said))


def _jobs(asked: argparse.Namespace, folder: Path) -> list[_Job]:
    tools, models = asked.tools.split(","), [m for m in asked.models.split(",") if m]
    numbers, names = _chosen(asked.words, asked.all, Target(CUDA, Device().architecture))
    whole = dict[str, tuple[str, ...]]()
    for name in models:
        original = make(name, folder)
        report = api.optimize(original, Options(target="cuda", keep="all"))
        whole[name] = ("--model", str(report.output), str(original))
    parts = max(1, asked.jobs // 2)
    jobs = list[_Job]()
    for tool in tools:
        if not asked.words:
            jobs.append(_Job(tool, ("--programs",), tuple(PROGRAMS)))
        jobs += [_Job(tool, arguments, (name,)) for name, arguments in whole.items()]
        for i in range(min(parts, len(numbers))):
            share = ",".join(map(str, numbers[i::parts]))
            jobs.append(_Job(tool, ("--cases", share), tuple(names[i::parts])))
    return jobs


def main() -> int:
    """Print findings and verdicts; return 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--jobs", type=int, default=usable_processors())
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--cases", help=argparse.SUPPRESS)
    parser.add_argument("--programs", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cases:
        _run_cases([int(n) for n in asked.cases.split(",")])
        return 0
    if asked.programs:
        _run_programs()
        return 0
    if asked.model:
        _run_model(*asked.model)
        return 0
    if shutil.which("compute-sanitizer") is None:
        _say("compute-sanitizer is not in the search path: nothing was checked.")
        return 0
    with tempfile.TemporaryDirectory() as name:
        return _verdicts(_jobs(asked, Path(name)), asked.jobs, asked.seconds)


if __name__ == "__main__":
    sys.exit(main())
