"""Hand-written programs as one-node models, and a worker process that runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tracea_graph.config import TOLERANCE
from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.plan import encode
from tracea_graph.kernels.program import Buffer, Call, OpType, Program, View
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ttg import Region, TileGraph

Array = npt.NDArray[Any]
WORKER = Path(__file__).with_name("worker.py")
EXTREMES = (0, 1, -1, 2, 3, 7, 16, 17, 255, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))


@dataclass(frozen=True)
class Case:
    """A program, what to feed it, and the outputs (or the words of the error) it must give."""

    name: str
    program: Program
    feeds: tuple[Array, ...]
    expected: tuple[Array, ...] = ()
    error: str = ""

    @property
    def type(self) -> OpType:
        return op_type(self.program)

    @property
    def tolerance(self) -> float:
        """How far results may be off, of max|y|."""
        fast_math = any(call.chain and call.chain.fast_math for call in self.program.calls)
        return TOLERANCE.kernel_fast_math if fast_math else TOLERANCE.kernel_f32


def op_type(program: Program) -> OpType:
    """The op type of a program's signature: one name per list of element types."""
    inputs = tuple(t.dtype for t in program.inputs if t.dtype)
    outputs = tuple(t.dtype for t in program.outputs if t.dtype)
    letters = "".join(t.short for t in inputs) + "_" + "".join(t.short for t in outputs)
    return OpType(f"Test_{letters}", inputs, outputs)


def spec(*shape: Extent, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(dtype, shape)


def dense(kind: str, index: int, *dims: Extent) -> View:
    """A row-major view of a whole buffer."""
    strides: list[Extent] = [1]
    for dim in reversed(dims[1:]):
        strides.insert(0, combine("mul", strides[0], dim))
    return View(Buffer(kind, index), dims, tuple(strides[: len(dims)]))


def strided(kind: str, index: int, dims: Sequence[Extent], strides: Sequence[Extent]) -> View:
    return View(Buffer(kind, index), tuple(dims), tuple(strides))


def normal(*shape: int, seed: int) -> Array:
    """Float32 from N(0, 1), the same for the same shape and seed."""
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def operator_case(
    name: str,
    op: str,
    params: Any,
    specs: Sequence[TensorSpec],
    feeds: Sequence[Array],
    operands: Sequence[Array] | None = None,
) -> Case:
    """The program the passes write for one operator, and what its reference makes of the feeds.

    The reference computes in float64, or with ``operands`` as they are.
    """
    names, results = [f"o{i}" for i in range(len(specs))], params.infer(specs)
    made = tuple(f"r{i}" for i in range(len(results)))
    region = Region("region", op, tuple(names), made, (), params)
    graph = TileGraph([region], names, list(made), {}, dict(zip(names, specs, strict=True)))
    given = operands or [a.astype(np.float64) if a.dtype == np.float32 else a for a in feeds]
    expected = [y.astype(np.float64) for y in params.reference(given)]
    return Case(name, lower(graph, region), tuple(feeds), tuple(expected))


def bf16_product(name: str, m: int, params: GemmParams, weight: Array) -> Case:
    """The program the passes write for ``m`` rows, a matrix stored in bf16 and a bias.

    An epilogue takes a full operand and a row beside the sum.
    """
    k, n, extra = params.k, params.n, params.epilogue is not None
    more = [normal(m, n, seed=3), normal(n, seed=4)] if extra else []
    feeds = (normal(m, k, seed=0), weight, normal(n, seed=2), *more)
    specs = [
        spec("m", k), spec(*weight.shape, dtype=DType.BF16), spec(n),
        *([spec("m", n), spec(n)] if extra else []),
    ]  # fmt: skip
    return operator_case(name, "FusedGemm", params, specs, feeds)


def model(program: Program, domain: str, plan: Sequence[int] | None = None) -> onnx.ModelProto:
    """A model of one node that runs the program (or another plan with its signature)."""

    def info(letter: str, i: int, t: TensorSpec) -> onnx.ValueInfoProto:
        dims = [d if isinstance(d, int | str) else None for d in t.shape or ()]
        return helper.make_tensor_value_info(f"{letter}{i}", t.dtype.onnx if t.dtype else 0, dims)

    inputs = [info("x", i, t) for i, t in enumerate(program.inputs)]
    outputs = [info("y", i, t) for i, t in enumerate(program.outputs)]
    node = helper.make_node(
        op_type(program).name,
        [i.name for i in inputs],
        [o.name for o in outputs],
        domain=domain,
        plan=list(plan if plan is not None else encode(program)),
    )
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_worker(job: dict[str, Any], isa: str | None = None, seconds: float = 1200) -> Any:
    """Run ``worker.py`` on a job and return its answer; a crash fails the test."""
    env = dict(os.environ)
    env.pop("TRACEA_ISA", None)
    if isa is not None:
        env["TRACEA_ISA"] = isa
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=env,
        timeout=seconds,
    )
    assert done.returncode == 0, f"the worker died with {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def run_cases(
    cases: Sequence[Case], library: Path, domain: str, folder: Path, isa: str, threads: int = 2
) -> dict[str, Any]:
    """Name of a case to its outputs, or to the text of its error."""
    jobs = []
    for case in cases:
        place = folder / case.name
        place.mkdir()
        onnx.save(model(case.program, domain), place / "model.onnx")
        np.savez(place / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
        jobs.append(str(place))
    job = {"task": "run", "library": str(library), "jobs": jobs, "threads": threads}
    answers = run_worker(job, isa)
    results: dict[str, Any] = {}
    for case, answer in zip(cases, answers, strict=True):
        if answer is None:
            with np.load(folder / case.name / "outputs.npz") as data:
                results[case.name] = tuple(data[f"y{i}"] for i in range(len(data.files)))
        else:
            results[case.name] = answer
    return results


def single(
    call: Call,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    **symbols: tuple[int, int],
) -> Program:
    """A program of one call."""
    return Program(tuple(inputs), tuple(outputs), symbols, (), (call,))


def mutate(plan: tuple[int, ...], chance: Random) -> list[int]:
    """A plan with some words changed, dropped, repeated or exchanged."""
    words = list(plan)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(words))
        match chance.randrange(8):
            case 0:
                del words[at:]
            case 1:
                words.insert(at, chance.choice(EXTREMES))
            case 2:
                other = chance.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = chance.choice(EXTREMES)
            case _:
                words[at] += chance.choice((-2, -1, 1, 2, 16))
        words = [min(max(w, EXTREMES[-1]), EXTREMES[-2]) for w in words] or [0]
        if len(words) > 2 and chance.random() < 0.9:
            words[2] = len(words)
    return words
