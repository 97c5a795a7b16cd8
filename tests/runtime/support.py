"""Hand-written programs as one-node models, and a worker process that runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.program import Buffer, Call, OpType, Program, View
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ttg import Region, TileGraph

Array = npt.NDArray[Any]
_AT_ONCE = 25
"""Cases of one session."""
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
    """:func:`narrow_product` of a matrix stored in bf16."""
    return narrow_product(name, m, params, weight, DType.BF16)


def narrow_product(name: str, m: int, params: GemmParams, weight: Array, dtype: DType) -> Case:
    """The program the passes write for ``m`` rows, a matrix stored in 16 bits and a bias.

    An epilogue takes a full operand and a row beside the sum.
    """
    k, n, extra = params.k, params.n, params.epilogue is not None
    more = [normal(m, n, seed=3), normal(n, seed=4)] if extra else []
    feeds = (normal(m, k, seed=0), weight, normal(n, seed=2), *more)
    specs = [
        spec("m", k), spec(*weight.shape, dtype=dtype), spec(n),
        *([spec("m", n), spec(n)] if extra else []),
    ]  # fmt: skip
    return operator_case(name, "FusedGemm", params, specs, feeds)


def model(program: Program, domain: str, plan: Sequence[int] | None = None) -> onnx.ModelProto:
    """A model of one node that runs the program (or another plan with its signature)."""
    return _model([program], [""], domain, plan)


def _model(
    programs: Sequence[Program], prefixes: Sequence[str], domain: str,
    plan: Sequence[int] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """A model of a node each; names of its values and sizes begin with the node's prefix."""
    nodes, inputs, outputs = [], list[onnx.ValueInfoProto](), list[onnx.ValueInfoProto]()
    for program, prefix in zip(programs, prefixes, strict=True):
        x, y = (
            [_info(f"{prefix}{letter}{i}", t, prefix) for i, t in enumerate(specs)]
            for letter, specs in (("x", program.inputs), ("y", program.outputs))
        )
        words = list(plan if plan is not None else encode(program))
        names = ([value.name for value in values] for values in (x, y))
        nodes.append(helper.make_node(op_type(program).name, *names, domain=domain, plan=words))
        inputs, outputs = inputs + x, outputs + y
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _info(name: str, t: TensorSpec, prefix: str) -> onnx.ValueInfoProto:
    dims = (prefix + d if isinstance(d, str) else d for d in t.shape or ())
    known = [d if isinstance(d, int | str) else None for d in dims]
    return helper.make_tensor_value_info(name, t.dtype.onnx if t.dtype else 0, known)


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
    """Name of a case to its outputs, or to the text of its error.

    Cases that should give outputs share sessions, which take longer to open than to run; those
    of a session that fails run again, each alone.
    """
    right = [case for case in cases if not case.error]
    groups = [right[i : i + _AT_ONCE] for i in range(0, len(right), _AT_ONCE)]
    job = {"task": "run", "library": str(library), "threads": threads}

    def run(groups: Sequence[Sequence[Case]], kind: str) -> Iterator[tuple[Sequence[Case], Any]]:
        places = [folder / f"{kind}{i}" for i in range(len(groups))]
        for place, group in zip(places, groups, strict=True):
            _place(group, domain, place)
        answers = run_worker({**job, "jobs": list(map(str, places))}, isa) if groups else []
        for place, group, answer in zip(places, groups, answers, strict=True):
            yield group, answer if answer is not None else _outputs(group, place)

    found, results = list(run(groups, "group")), dict[str, Any]()
    alone = [(c,) for c in cases if c.error]
    alone += [(c,) for group, answer in found if isinstance(answer, str) for c in group]
    for group, answer in (*found, *run(alone, "case")):
        if not isinstance(answer, str):
            results |= answer
        elif len(group) == 1:
            results[group[0].name] = answer
    return {case.name: results[case.name] for case in cases}


def _place(cases: Sequence[Case], domain: str, folder: Path) -> None:
    """A folder with a model of all cases, and what to feed it."""
    folder.mkdir()
    prefixes = [f"c{i}_" for i in range(len(cases))]
    onnx.save(_model([c.program for c in cases], prefixes, domain), folder / "model.onnx")
    feeds = {
        f"{prefix}x{i}": x
        for prefix, case in zip(prefixes, cases, strict=True)
        for i, x in enumerate(case.feeds)
    }
    np.savez(folder / "feeds.npz", **feeds)


def _outputs(cases: Sequence[Case], folder: Path) -> dict[str, tuple[Array, ...]]:
    """The outputs of each case, in the order of the model's."""
    with np.load(folder / "outputs.npz") as data:
        every = iter([data[f"y{i}"] for i in range(len(data.files))])
    return {c.name: tuple(next(every) for _ in c.program.outputs) for c in cases}


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
