"""A backend that is as small as one can be: plain loops over strided views, in ``plain.c``.

What it has no code for it declines with the reason, so that ONNX Runtime runs it.
"""

from __future__ import annotations

import hashlib
import math
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.kernels.program import (
    Attributes,
    Buffer,
    Call,
    OpType,
    Program,
    Temp,
    View,
)
from tracea_graph.kernels.rules import RuleNames
from tracea_graph.kernels.signature import clipped, localise, loose_axes
from tracea_graph.kernels.source import Source
from tracea_graph.ops.chain import COL, FULL, ROW, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import IndexMap, Move, StridedLayout
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.weights import KN, NK
from tracea_graph.passes import LAYOUT, Request
from tracea_graph.policy import Machine
from tracea_graph.rewrite import Phase
from tracea_graph.scratch import Scratch
from tracea_graph.toolchain import Library, find_compiler
from tracea_graph.toolchain.cache import write_whole
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PLAIN", "PlainBackend"]

_KERNELS = ("elementwise", "copy", "product", "norm", "softmax", "same")
_OPERATORS = ("", "", "add", "sub", "mul", "floordiv", "ceildiv", "max", "min")
_STEPS = MappingProxyType({
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "max": "{0} > {1} || {0} != {0} ? {0} : {1}", "min": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "pow": "powf({0}, {1})", "neg": "-{0}", "abs": "fabsf({0})", "sqrt": "sqrtf({0})",
    "reciprocal": "1 / {0}", "exp": "expf({0})", "log": "logf({0})", "erf": "erff({0})",
    "tanh": "tanhf({0})", "sigmoid": "1 / (1 + expf(-{0}))", "relu": "{0} < 0 ? 0 : {0}",
    "clip": "{0} < {1} ? {1} : {0} > {2} ? {2} : {0}", "silu": "{0} / (1 + expf(-{0}))",
    "leaky_relu": "{0} < 0 ? {0} * {1} : {0}", "gelu": "{0} * erfcf({0} * -0x1.6a09e6p-1f) / 2",
    "less": "{0} < {1}", "equal": "{0} == {1}", "and": "{0} && {1}", "or": "{0} || {1}",
    "not": "!{0}", "where": "{0} ? {1} : {2}", "number": "{0} ? 1 : 0", "nonzero": "{0} != 0",
})  # fmt: skip
"""What a step is in C."""
_TYPES = MappingProxyType({DType.F32: "float", DType.BOOL: "uint8_t", DType.I64: "int64_t",
                           DType.I32: "int32_t"})  # fmt: skip
_IDENTITY = Chain((FULL,), (), (0,))
_SUM = Chain((FULL, ROW), (Step("add", (0, 1)),), (2,))
_PRODUCT = Chain((FULL, ROW), (Step("mul", (0, 1)),), (2,))
_BOTH = Chain((FULL, ROW, ROW), (Step("mul", (0, 1)), Step("add", (3, 2))), (4,))
Shape = tuple[Extent, ...]


class _LackingError(Exception):
    """There is no code for a region; it says of what."""


@dataclass
class _Writer:
    """A program as it grows; every call's views share their outer axes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    temps: list[Extent] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def slots(self, kind: str) -> list[View]:
        specs = self.inputs if kind == "input" else self.outputs
        return [View.dense(Buffer(kind, i), s.shape or ()) for i, s in enumerate(specs)]

    def temp(self, shape: Shape) -> View:
        self.temps.append(product(shape))
        return View.dense(Buffer("temp", len(self.temps) - 1), shape)

    def call(self, op: str, *views: View, chain: Chain | None = None, **ints: int) -> None:
        for step in chain.steps if chain else ():
            if step.op not in _STEPS:
                raise _LackingError(f"plain has no {step.op}")
        if chain and not {*chain.operand_types, *chain.result_types} <= _TYPES.keys():
            raise _LackingError("plain has no chains of such numbers")
        made = [v if v.dims else replace(v, dims=(1,), strides=(0,)) for v in views]
        self.calls.append(Call(op, "f32", tuple(made), Attributes(ints.items()), chain))

    def program(self, symbols: Mapping[str, tuple[int, int]]) -> Program:
        last = max(len(self.calls) - 1, 0)
        temps = tuple(Temp(DType.F32, count, 0, last) for count in self.temps)
        return Program(self.inputs, self.outputs, symbols, temps, tuple(self.calls))


def _matrix(view: View) -> View:
    """A dense view as rows."""
    return View.dense(view.buffer, (product(view.dims[:-1]), view.dims[-1]))


def _over(view: View, kind: str, full: Shape) -> View:
    """A dense operand of a chain over rows."""
    steps = {FULL: (full[1], 1), ROW: (0, 1), COL: (1, 0)}.get(kind, (0, 0))
    return View(view.buffer, full, steps)


def _seen(view: View, moves: IndexMap) -> View:
    at = moves.layout(StridedLayout(view.dims, view.strides, view.offset))
    return View(view.buffer, at.dims, at.strides, at.offset)


def _norm(w: _Writer, norm: Norm, x: View, affine: Sequence[View], y: View) -> None:
    bits = struct.unpack("<q", struct.pack("<d", norm.epsilon))[0]
    w.call("norm", x, y, layer=int(norm.kind == "layer"), epsilon=bits)
    if affine:
        chain = _BOTH if len(affine) == 2 else _PRODUCT if norm.gamma else _SUM
        w.call("elementwise", y, *(_over(v, ROW, y.dims) for v in affine), y, chain=chain)


def _gemm(w: _Writer, p: GemmParams, operands: Sequence[View], results: Sequence[View]) -> None:
    if p.layout not in (KN, NK) or p.parts:
        raise _LackingError("plain multiplies by one matrix as it is")
    x, weight, bias, epilogue_inputs, affine = p.split(operands)
    x, into = _matrix(x), [_matrix(v) for v in results]
    full = (x.dims[0], p.n)
    matrix = View(weight.buffer, (p.k, p.n), (p.n, 1) if p.layout == KN else (1, p.k))
    more = [_over(bias, ROW, full)] if bias else []
    last = into[1:] or [w.temp(full)] if p.norm else into
    total = last[0] if p.epilogue is None else w.temp(full)
    w.call("product", total, x, matrix, *more)
    if p.epilogue:
        kinds = zip(epilogue_inputs, p.epilogue.operands[1:], strict=True)
        views = [_over(v, kind, full) for v, kind in kinds]
        w.call("elementwise", total, *views, *last, chain=p.epilogue)
    if p.norm:
        _norm(w, p.norm, last[0], affine, into[0])


def _matmul(
    w: _Writer, p: MatMulParams, operands: Sequence[View], results: Sequence[View]
) -> None:
    *outer, rows, columns = p.shapes([TensorSpec(DType.F32, v.dims) for v in operands])[2]
    full, sides = (*outer, rows, columns), []
    for view, perm, heads in zip(operands, (p.a_perm, p.b_perm), p.heads, strict=False):
        split = (Move("reshape", (*[0] * (len(perm) - 2), heads, -1)),) if heads else ()
        seen = _seen(view, IndexMap((*split, *((Move("transpose", perm),) if perm else ()))))
        if len(seen.dims) < 2:
            raise _LackingError("plain has no products of vectors")
        ends = len(seen.dims) - 2
        own = View(seen.buffer, seen.dims[:ends], seen.strides[:ends]).stretched(tuple(outer))
        dims, steps = own.dims + seen.dims[ends:], own.strides + seen.strides[ends:]
        sides.append(View(seen.buffer, dims, steps, seen.offset))
    into = [View.dense(v.buffer, full) for v in results]
    total = w.temp(full) if p.epilogue else into[0]
    w.call("product", total, *sides)
    if p.epilogue:
        epilogue_inputs = [v.stretched(full) for v in operands[2:]]
        w.call("elementwise", total, *epilogue_inputs, *into, chain=p.epilogue)


def _elementwise(
    w: _Writer, p: ElementwiseParams, operands: Sequence[View], results: Sequence[View]
) -> None:
    full = p.common([v.dims for v in operands])
    seen = [_seen(v, m).stretched(full) for v, m in zip(operands, p.views, strict=True)]
    into = [View.dense(v.buffer, full) for v in results]
    w.call("copy" if p.moves_only else "elementwise", *seen, *into,
           chain=None if p.moves_only else p.chain)  # fmt: skip


def _norms(w: _Writer, p: NormParams, operands: Sequence[View], results: Sequence[View]) -> None:
    data, affine = operands[: p.data_operands], operands[p.data_operands :]
    into = [_matrix(v) for v in results]
    total = _matrix(data[0])
    if p.prologue:
        total = into[-1] if p.keep_sum else w.temp(into[0].dims)
        views = [_over(v, k, total.dims) for v, k in zip(data, p.prologue.operands, strict=True)]
        w.call("elementwise", *views, total, chain=p.prologue)
    elif p.keep_sum:
        w.call("copy", total, into[-1])
    _norm(w, p.norm, total, affine, into[0])


def _softmax(
    w: _Writer, p: SoftmaxParams, operands: Sequence[View], results: Sequence[View]
) -> None:
    full = results[0].dims
    x, y = operands[0], results[0]
    if p.prologue:
        x = w.temp(full)
        views = [v.stretched(full) for v in operands]
        w.call("elementwise", *views, x, chain=p.prologue)
    axis = len(full) + p.axis
    last = IndexMap((Move("transpose", (*(i for i in range(len(full)) if i != axis), axis)),))
    w.call("softmax", _seen(x, last), _seen(y, last), log=int(p.log))


_LOWERINGS: Mapping[type, Any] = MappingProxyType({
    GemmParams: _gemm, MatMulParams: _matmul, ElementwiseParams: _elementwise,
    NormParams: _norms, SoftmaxParams: _softmax,
})  # fmt: skip


def _words(extent: Extent, symbols: Sequence[str]) -> list[int]:
    """Postfix code of an extent, after how many words it has."""

    def code(e: Extent) -> list[list[int]]:
        if isinstance(e, int):
            return [[0, e]]
        if isinstance(e, str):
            return [[1, symbols.index(e)]]
        return [*code(e.args[0]), *code(e.args[1]), [_OPERATORS.index(e.op)]]

    made = code(extent)
    if len(made) > 64:
        raise GraphError("plain has no room for so long a size")
    return [len(made), *(word for pair in made for word in pair)]


def _chain_source(chain: Chain) -> str:
    """A function that computes a chain for numbers that lie at equal steps."""
    count, lines = len(chain.operands), []
    for i, dtype in enumerate(chain.operand_types):
        kind = "int" if dtype is DType.BOOL else "float"
        lines.append(f"const {kind} v{i} = *({_TYPES[dtype]}*)(at[{i}] + i * steps[{i}]);")
    for i, step in enumerate(chain.steps, count):
        args = [_number(a) if isinstance(a, float) else f"v{a}" for a in step.args]
        kind = "int" if chain.types[i] == "b" else "float"
        lines.append(f"const {kind} v{i} = {_STEPS[step.op].format(*args)};")
    for i, (result, dtype) in enumerate(
        zip(chain.results, chain.result_types, strict=True), count
    ):
        lines.append(f"*({_TYPES[dtype]}*)(at[{i}] + i * steps[{i}]) = v{result};")
    head = f"static void chain_{chain.key}(int64_t count, char** at, const int64_t* steps) {{"
    return "\n  ".join((head, "for (int64_t i = 0; i < count; ++i) {", *lines, "}\n}"))


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"({value!r}f)"
    return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"


def _source(types: Sequence[OpType], chains: Iterable[Chain], domain: str) -> str:
    """The library's one source."""
    chains = list(chains)
    cases = "".join(f"if (key == {c.key}) return chain_{c.key};\n  " for c in chains)
    ops = []
    for t in types:
        elements = ", ".join(str(d.onnx) for d in (*t.inputs, *t.outputs))
        counts = f"{{{len(t.inputs)}, {len(t.outputs)}}}"
        ops.append(
            f'{{.type = "{t.name}", .elements = (int[]){{{elements}}}, .counts = {counts}}}'
        )
    made = (
        f'#define DOMAIN_NAME "{domain}"', *map(_chain_source, chains),
        f"static Chain* chain_of(int64_t key) {{\n  {cases}return 0;\n}}",
        f"static Op OPS[] = {{{', '.join((*ops, '{0}'))}}};",
    )  # fmt: skip
    text = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
    return text.replace("@GENERATED@", "\n\n".join(made))


class PlainBackend:
    """Programs of six calls, compiled for whatever machine this is."""

    name = "plain"
    targets, caps = ("plain:c",), ()
    rules = RuleNames()
    most_guarded = 8
    schedule_space = diagnostics = None

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        return ("c",)

    def settled(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        note = "" if precision == "fp32" else f"plain computes in fp32, not in {precision}"
        return "fp32", note

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        return Machine(gflops=8.0)

    def unmeasured(self) -> str:
        return ""

    def fingerprint(self) -> dict[str, Any]:
        return {"model": platform.processor()}

    def phases(
        self, request: Request, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        return LAYOUT

    def lacks(self, graph: TileGraph, region: Region) -> str:
        try:
            self.lower(graph, region)
        except _LackingError as why:
            return str(why)
        return ""

    def lower(self, graph: TileGraph, region: Region) -> Program:
        specs = clipped([graph.spec(v) for v in region.operands])
        if (lower := _LOWERINGS.get(type(region.params))) is None:
            raise _LackingError(f"plain has no {region.op}")
        if loose_axes(graph, region):
            raise _LackingError("plain repeats no input where it may turn out to be of size 1")
        local, where = localise(specs)
        w = _Writer(local, tuple(region.params.infer(local)))
        lower(w, region.params, w.slots("input"), w.slots("output"))
        return w.program(where)

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        w = _Writer((*specs, *specs), (TensorSpec(DType.BOOL, (1,)),))
        slots, count = w.slots("input"), len(specs)
        for i in range(count):
            w.call("same", slots[i], slots[count + i], *w.slots("output"), first=int(i == 0))
        return w.program({})

    def encode(self, program: Program) -> tuple[int, ...]:
        ins, outs, temps = program.inputs, program.outputs, program.temps
        if len(ins) > 32 or len(ins) + len(outs) + len(temps) > 128 or len(program.symbols) > 64:
            raise GraphError("plain has no room for so many values")
        names, tensors = list(program.symbols), (*ins, *outs)
        views = [v for call in program.calls for v in call.views if v is not None]
        if any(
            len(dims) > 8 for dims in (*(s.shape or () for s in tensors), *(v.dims for v in views))
        ):
            raise GraphError("plain has no loops over more than 8 axes")
        words = [len(ins), len(outs), len(names), len(temps), len(program.calls)]
        words += [word for place in program.symbols.values() for word in place]
        words += [len(s.shape or ()) for s in tensors]
        for size in (d for s in tensors for d in s.shape or ()):
            words += _words(size, names)
        for temp in temps:
            words += _words(combine("mul", temp.count, 4), names)
        first = {"input": 0, "output": len(ins), "temp": len(tensors)}
        for call in program.calls:
            ints = (*call.attributes.values(), 0, 0)[:2]
            key = call.chain.key if call.chain else 0
            words += [_KERNELS.index(call.op), key, len(call.views), *ints]
            for view in call.views:
                assert view is not None
                number = first[view.buffer.kind] + view.buffer.index
                dtype = tensors[number].dtype if number < len(tensors) else DType.F32
                words += [number, int((dtype or DType.F32).size), len(view.dims)]
                for size in (view.offset, *view.dims, *view.strides):
                    words += _words(size, names)
        return tuple(words)

    def kernels_of(self, call: Call) -> set[str]:
        return {call.op}

    def sources(
        self, kernels: Iterable[str], chains: Iterable[Chain], levels: Sequence[str]
    ) -> list[Source]:
        return [Source("plain", _source((), chains, "plain"))]

    def build(
        self, types: Sequence[OpType], kernels: Sequence[str], chains: Sequence[Chain],
        levels: Sequence[str], out: Path, environment: Environment, quick: bool = False,
    ) -> Library:  # fmt: skip
        start, compiler = perf_counter(), find_compiler(environment)
        whole = _source(types, chains, "")
        digest = hashlib.sha256(whole.encode()).hexdigest()
        domain = f"tracea.{digest[:10]}"
        with Scratch("plain") as name:
            folder = Path(name)
            (folder / "plain.c").write_text(_source(types, chains, domain), encoding="utf-8")
            flags = ("-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-Wl,--build-id=none")
            compiler.run((*flags, "-x", "c", "plain.c", "-o", "plain.so", "-lm"), folder)
            data = (folder / "plain.so").read_bytes()
        write_whole(out, data, mode=0o755)
        sha256, seconds = hashlib.sha256(data).hexdigest(), perf_counter() - start
        return Library(out, domain, sha256, tuple(levels), seconds, 1, {"source": digest})


PLAIN = PlainBackend()
