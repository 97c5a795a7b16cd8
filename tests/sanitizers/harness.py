"""Builds library and host with a sanitizer, and passes cases to and fro.

All numbers in the files are int64.  Jobs: their count, then for each the op type's name, the
plan's words and the inputs (element type, dims, bytes), every list after its length.  Answers: for
each job the length of its error and the error, or 0 and the outputs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.runtime.support import Case
from tracea_graph.config import Environment
from tracea_graph.kernels.cpu.emitter import kernels_of_call
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain import Library

__all__ = ["Answer", "Job", "Sanitizer", "conforms", "kernels_in"]

Answer = tuple[np.ndarray[Any, Any], ...] | str
Job = tuple[Case, Sequence[int]]
"""A case and the plan to run it with."""
HOST = Path(__file__).with_name("host.cpp")
KERNEL_SOURCES = Path(__file__).parents[2] / "kernels" / "cpu"
SETTINGS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def kernels_in(cases: Collection[Case]) -> frozenset[str]:
    """The kernels that cases with an answer run, chains aside."""
    right = (case.program.calls for case in cases if not case.error)
    return frozenset(
        kernel for calls in right for call in calls for kernel in kernels_of_call(call)
    )


class Sanitizer:
    """A library of what the cases run, for levels, and the host; both compiled with ``flags``.

    Nothing is optimized: what a sanitizer adds takes the optimizer far longer than it saves the
    few small cases.  Without flags the library is made of the objects that other tests use.
    """

    def __init__(
        self, flags: Sequence[str], cases: Sequence[Case], isas: Sequence[str], folder: Path
    ) -> None:
        self.folder = folder
        types = sorted({case.type for case in cases}, key=lambda t: t.name)
        right = (call.chain for case in cases if not case.error for call in case.program.calls)
        chains = {chain.key: chain for chain in right if chain}.values()
        environment = Environment()
        if flags:
            # the last level of optimization counts, and a library's units ask for their own
            script = f'exec g++ -g1 {shlex.join(flags)} "$@" -O0'
            environment = replace(environment, compiler=shlex.join(["sh", "-c", script, "g++"]))
        self.library: Library = build_library(
            LibraryContents(types, kernels_in(cases), list(chains)), isas, folder / "library.so",
            environment=environment, seconds=600, quick=True,
        )  # fmt: skip
        self.host = folder / "host"
        command = ["g++", "-std=c++17", "-g1", "-O1", *flags, f"-I{KERNEL_SOURCES}",
            f"-I{KERNEL_SOURCES.parent}", str(HOST)]  # fmt: skip
        subprocess.run([*command, "-o", str(self.host), "-pthread", "-ldl"], check=True)

    def run(
        self,
        jobs: Sequence[Job],
        isa: str,
        *,
        workers: int = 1,
        together: int = 0,
        repeats: int = 0,
        fill: int = 0xFF,
        spins: bool = True,
        seconds: float = 300,
    ) -> list[Answer]:
        """Every job's outputs or error; fails with what the sanitizer reports.

        Memory that nobody has written holds bytes of ``fill``: a NaN, unless told otherwise.
        """
        asked, answers = self.folder / f"{isa}.jobs", self.folder / f"{isa}.answers"
        asked.write_bytes(b"".join([_number(len(jobs)), *(_job(*job) for job in jobs)]))
        counts = [str(n) for n in (workers, together, repeats, fill, int(spins))]
        done = subprocess.run(
            [str(self.host), str(self.library.path), str(asked), str(answers), *counts],
            capture_output=True, text=True, timeout=seconds, check=False,
            env={**os.environ, **SETTINGS, "TRACEA_ISA": isa},
        )  # fmt: skip
        report = done.stdout[-2000:] + done.stderr[-6000:]
        assert done.returncode == 0 and "runtime error" not in report, report
        with answers.open("rb") as file:
            return [_answer(file) for _ in jobs]


def conforms(case: Case, answer: Answer, limit: float) -> None:
    """Fail unless an answer is what the case expects: within ``limit`` of ``max|y|``."""
    if case.error:
        assert case.error in answer
        return
    assert not isinstance(answer, str), f"{case.name}: {answer}"
    for got, wanted in zip(answer, case.expected, strict=True):
        asked = np.isfinite(wanted.astype(np.float64))
        got, wanted = got[asked].astype(np.float64), wanted[asked].astype(np.float64)
        most = max(np.abs(wanted).max(initial=0), 1e-3)
        assert np.abs(got - wanted).max(initial=0) <= limit * most, case.name


def _number(value: int) -> bytes:
    return int(value).to_bytes(8, "little", signed=True)


def _job(case: Case, plan: Sequence[int]) -> bytes:
    name = case.type.name.encode()
    parts = [_number(len(name)), name, _number(len(plan)), *map(_number, plan)]
    parts.append(_number(len(case.feeds)))
    for spec, feed in zip(case.program.inputs, case.feeds, strict=True):
        assert spec.dtype is not None
        parts += [_number(spec.dtype.onnx), _number(feed.ndim), *map(_number, feed.shape)]
        parts.append(np.ascontiguousarray(feed).tobytes())
    return b"".join(parts)


def _answer(file: Any) -> Answer:
    def number() -> int:
        return int.from_bytes(file.read(8), "little", signed=True)

    if length := number():
        return str(file.read(length).decode())
    outputs = []
    for _ in range(number()):
        dtype = helper.tensor_dtype_to_np_dtype(number())
        shape = tuple(number() for _ in range(number()))
        data = file.read(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        outputs.append(np.frombuffer(data, dtype).reshape(shape))
    return tuple(outputs)
