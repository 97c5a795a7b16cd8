"""A minimal backend: plain loops over strided views, in ``plain.c``.

It declines ops that it does not implement, with the reason, and ONNX Runtime executes them.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.extent_bytecode import encode_extent
from tracea_graph.kernels.generated_source import Source
from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.kernels.program import (
    NO_CONTENTS,
    Attributes,
    Call,
    LaunchedCall,
    LibraryContents,
    OpType,
    Program,
    View,
)
from tracea_graph.kernels.program_writer import LackingError, ProgramWriter, Value
from tracea_graph.kernels.region_signature import (
    localise_symbols,
    loose_axes,
    replace_clipped_sizes,
)
from tracea_graph.kernels.rule_names import RuleNames
from tracea_graph.kernels.schema import float_bits
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.passes import LAYOUT, PlanRequest
from tracea_graph.policy import KernelCatalog, Machine
from tracea_graph.rewrite import Pass, Phase
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain import (
    Counted,
    Library,
    LibraryManifest,
    find_compiler,
    ignore_progress,
)
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PLAIN", "PlainBackend"]

_KERNELS = ("elementwise", "copy", "product", "norm", "softmax", "same")
_STEPS = frozenset((
    "add", "sub", "mul", "div", "max", "min", "pow", "neg", "abs", "sqrt", "reciprocal", "exp",
    "log", "erf", "tanh", "sigmoid", "relu", "clip", "silu", "leaky_relu", "gelu", "less", "equal",
    "and", "or", "not", "where", "number", "nonzero",
))  # fmt: skip
"""Chain steps that ``plain.c`` implements."""
_ELEMENTS = frozenset((DType.F32, DType.BOOL, DType.I64, DType.I32))


class _CallWriter(ProgramWriter):
    """Writes programs of this backend."""

    def call(self, op: str, *values: Value, **ints: int) -> None:
        views = tuple(v.view for v in values)
        self.calls.append(Call(op, "f32", views, Attributes(ints.items())))

    def elementwise_call(self, chain: Chain, views: Sequence[View]) -> None:
        for step in chain.steps:
            if step.op not in _STEPS:
                raise LackingError(f"plain has no {step.op}")
        if not {*chain.operand_types, *chain.result_types} <= _ELEMENTS:
            raise LackingError("plain has no chains of such numbers")
        self.calls.append(Call("elementwise", "f32", tuple(views), chain=chain))

    def copy_call(self, source: View, target: View, dtype: DType) -> None:
        self.calls.append(Call("copy", "f32", (source, target)))


def _norm(w: _CallWriter, norm: Norm, x: Value, affine: Sequence[Value], y: Value) -> None:
    w.call("norm", x, y, layer=int(norm.kind == "layer"), epsilon=float_bits(norm.epsilon))
    for value, op in zip(affine, norm.gamma * ("mul",) + norm.beta * ("add",), strict=True):
        chain = Chain((FULL, FULL), (Step(op, (0, 1)),), (2,))
        w.chain(chain, [y, value.stretched(y.shape)], [y])


def _gemm(
    w: _CallWriter, p: GemmParams, operands: Sequence[Value], results: Sequence[Value]
) -> None:
    if p.layout not in (KN, NK) or p.splits or p.integers:
        raise LackingError("plain multiplies by one matrix as it is")
    x, weight, bias, extras, affine = p.split(operands)
    y, full = [w.matrix(v) for v in results], (*x.shape[:-1], p.n)
    more = [w.matrix(v.stretched(full)) for v in (*([bias] if bias else []), *extras)]
    last = y[1:] or [w.temp(DType.F32, y[0].shape)] if p.norm else y
    total = w.temp(DType.F32, y[0].shape) if p.epilogue else last[0]
    right = weight if p.layout == KN else weight.transposed((1, 0))
    w.call("product", total, w.matrix(x), right, *more[: p.bias])
    if p.epilogue:
        w.chain(p.epilogue, [total, *more[p.bias :]], last)
    if p.norm:
        _norm(w, p.norm, last[0], affine, y[0])


def _matmul(
    w: _CallWriter, p: MatMulParams, operands: Sequence[Value], results: Sequence[Value]
) -> None:
    full = results[0].shape
    sides = [w.through(v, p.reading(i)) for i, v in enumerate(operands[:2])]
    if any(len(v.shape) < 2 for v in sides):
        raise LackingError("plain has no products of vectors")
    total = w.temp(DType.F32, full) if p.epilogue else results[0]
    w.call("product", total, *(v.stretched((*full[:-2], *v.shape[-2:])) for v in sides))
    if p.epilogue:
        w.chain(p.epilogue, [total, *(v.stretched(full) for v in operands[2:])], results)


def _elementwise(
    w: _CallWriter, p: ElementwiseParams, operands: Sequence[Value], results: Sequence[Value]
) -> None:
    full = p.common([v.shape for v in operands])
    seen = [w.through(v, m).stretched(full) for v, m in zip(operands, p.views, strict=True)]
    w.chain(p.chain, seen, [Value(View.dense(v.view.buffer, full), v.dtype) for v in results])


def _norms(
    w: _CallWriter, p: NormParams, operands: Sequence[Value], results: Sequence[Value]
) -> None:
    data, affine = operands[: p.data_operands], operands[p.data_operands :]
    y, full = [w.matrix(v) for v in results], results[0].shape
    total = w.matrix(data[0])
    if p.prologue:
        total = y[-1] if p.keep_sum else w.temp(DType.F32, y[0].shape)
        w.chain(p.prologue, [w.matrix(v.stretched(full)) for v in data], [total])
    elif p.keep_sum:
        w.copy(total, y[-1])
    _norm(w, p.norm, total, affine, y[0])


def _softmax(
    w: _CallWriter, p: SoftmaxParams, operands: Sequence[Value], results: Sequence[Value]
) -> None:
    x, y = operands[0], results[0]
    if p.prologue:
        x = w.temp(DType.F32, y.shape)
        w.chain(p.prologue, [v.stretched(y.shape) for v in operands], [x])
    axes = list(range(len(y.shape)))
    axes.append(axes.pop(p.axis))
    w.call("softmax", x.transposed(axes), y.transposed(axes), log=int(p.log))


_LOWERINGS: Mapping[type, Any] = MappingProxyType({
    GemmParams: _gemm, MatMulParams: _matmul, ElementwiseParams: _elementwise,
    NormParams: _norms, SoftmaxParams: _softmax,
})  # fmt: skip


def _chain_source(chain: Chain) -> str:
    """Generate a function that evaluates a chain over elements at constant strides."""
    lines, count = list[str](), len(chain.operands)
    for i, operand in enumerate(chain_source.chain_operands(chain)):
        place = f"*({operand.element}*)(at[{i}] + i * steps[{i}])"
        lines.append(f"const {operand.vector} x{i} = {place};")
    lines += chain_source.chain_statements(chain)
    for i, result in enumerate(chain_source.chain_results(chain), count):
        lines.append(f"*({result.element}*)(at[{i}] + i * steps[{i}]) = {result.expression};")
    head = f"static void chain_{chain.key}(int64_t count, char** at, const int64_t* steps) {{"
    return "\n  ".join((head, "for (int64_t i = 0; i < count; ++i) {", *lines, "}\n}"))


def _words(extent: Extent, index: Mapping[str, int]) -> list[int]:
    code = encode_extent(extent, index)
    if len(code) > 64:
        raise GraphError("plain has no room for so long a size")
    return [len(code), *code]


def _source(types: Iterable[OpType], chains: Iterable[Chain], domain: str) -> str:
    """Generate the single source file of a library."""
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
    """Backend of six kernels, compiled for the current machine."""

    name = "plain"
    targets, caps = ("plain:c",), ()
    rules = RuleNames()
    providers: tuple[str, ...] = ()
    most_guarded = 8
    whole_models = convolves_volumes = False
    schedule_space = diagnostics = tracing = recording = None
    catalog = KernelCatalog("plain")
    standalone_ops: tuple[str, ...] = ()

    def levels(self, level: str, precision: str) -> tuple[str, ...]:
        return ("c",)

    def resolve_precision(self, precision: str, levels: Sequence[str]) -> tuple[str, str]:
        note = "" if precision == "fp32" else f"plain computes in fp32, not in {precision}"
        return "fp32", note

    def machine(self, levels: Sequence[str], environment: Environment | None = None) -> Machine:
        return Machine(gflops=8.0)

    def device_runtime(self) -> Mapping[str, str]:
        """Return nothing: kernels run on the host."""
        return {}

    def require_compilers(self, environment: Environment) -> None:
        return

    def build_ahead(
        self,
        levels: Sequence[str],
        environment: Environment,
        stopped: Callable[[], bool],
        contents: LibraryContents = NO_CONTENTS,
    ) -> None:
        return

    def requirement(self, manifest: LibraryManifest) -> str:
        return ""

    def multiplies_float8(self, levels: Sequence[str]) -> bool:
        """Return False: no kernel multiplies 8-bit floats."""
        return False

    def unmeasured(self, levels: Sequence[str]) -> str:
        return ""

    def fingerprint(self) -> dict[str, Any]:
        return {"model": platform.processor()}

    def structure_rules(self, request: PlanRequest) -> tuple[Pass, ...]:
        return ()

    def phases(
        self, request: PlanRequest, machine: Machine, sizes: Mapping[str, int]
    ) -> tuple[Phase, ...]:
        return LAYOUT

    def lacks(self, graph: TileGraph, region: Region) -> str:
        try:
            self.lower(graph, region)
        except LackingError as why:
            return str(why)
        return ""

    def lower(self, graph: TileGraph, region: Region) -> Program:
        specs = replace_clipped_sizes([graph.spec(v) for v in region.operands])
        if (lower := _LOWERINGS.get(type(region.params))) is None:
            raise LackingError(f"plain has no {region.op}")
        if loose_axes(graph, region):
            raise LackingError("plain repeats no input where it may turn out to be of size 1")
        local, where = localise_symbols(specs)
        w = _CallWriter(local, tuple(region.params.infer(local)))
        lower(w, region.params, w.slots("input"), w.slots("output"))
        return w.program(where)

    def launch_order(
        self, program: Program, fixed: frozenset[int], sizes: Mapping[str, int]
    ) -> tuple[LaunchedCall, ...]:
        return ()

    def lower_guard(self, specs: Sequence[TensorSpec]) -> Program:
        w = _CallWriter((*specs, *specs), (TensorSpec(DType.BOOL, (1,)),))
        slots, count = w.slots("input"), len(specs)
        for i in range(count):
            w.call("same", slots[i], slots[count + i], *w.slots("output"), first=int(i == 0))
        return w.program({})

    def encode(self, program: Program) -> tuple[int, ...]:
        ins, outs, temps = program.inputs, program.outputs, program.temps
        if len(ins) > 32 or len(ins) + len(outs) + len(temps) > 128 or len(program.symbols) > 64:
            raise GraphError("plain has no room for so many values")
        index, tensors = {name: i for i, name in enumerate(program.symbols)}, (*ins, *outs)
        shapes = [spec.shape or () for spec in tensors]
        dims = [*shapes, *(v.dims for call in program.calls for v in call.views if v)]
        if any(len(d) > 8 for d in dims):
            raise GraphError("plain has no loops over more than 8 axes")
        words = [len(ins), len(outs), len(index), len(temps), len(program.calls)]
        words += [word for place in program.symbols.values() for word in place]
        words += map(len, shapes)
        sizes = [size for shape in shapes for size in shape]
        sizes += [combine("mul", temp.count, int(temp.dtype.size)) for temp in temps]
        words += [word for size in sizes for word in _words(size, index)]
        types = [*(spec.dtype or DType.F32 for spec in tensors), *(temp.dtype for temp in temps)]
        first = {"input": 0, "output": len(ins), "temp": len(tensors)}
        for call in program.calls:
            ints = (*call.attributes.values(), 0, 0)[:2]
            key = call.chain.key if call.chain else 0
            words += [_KERNELS.index(call.op), key, len(call.views), *ints]
            for view in filter(None, call.views):
                number = first[view.buffer.kind] + view.buffer.index
                words += [number, int(types[number].size), len(view.dims)]
                for size in (view.offset, *view.dims, *view.strides):
                    words += _words(size, index)
        return tuple(words)

    def kernels_of(self, call: Call) -> set[str]:
        return {call.op}

    def metadata(
        self,
        levels: Sequence[str],
        kernels: Sequence[str] | None = None,
        environment: Environment | None = None,
    ) -> tuple[KernelMetadata, ...]:
        return ()

    def standalone(self, ops: Sequence[str]) -> LibraryContents:
        return NO_CONTENTS

    def sources(self, contents: LibraryContents, levels: Sequence[str]) -> list[Source]:
        return [Source("plain", _source((), contents.chains, "plain"))]

    def build(
        self, contents: LibraryContents,
        levels: Sequence[str], out: Path, environment: Environment, quick: bool = False,
        counted: Counted = ignore_progress,
    ) -> Library:  # fmt: skip
        start, compiler = perf_counter(), find_compiler(environment)
        whole = _source(contents.types, contents.chains, "")
        digest = hashlib.sha256(whole.encode()).hexdigest()
        domain = f"tracea.{digest[:10]}"
        with ScratchFolder("plain") as name:
            folder = Path(name)
            (folder / "plain.c").write_text(
                _source(contents.types, contents.chains, domain), encoding="utf-8"
            )
            flags = ("-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-Wl,--build-id=none")
            compiler.run((*flags, "-x", "c", "plain.c", "-o", "plain.so", "-lm"), folder)
            data = (folder / "plain.so").read_bytes()
        write_atomically(out, data, mode=0o755)
        sha256, seconds = hashlib.sha256(data).hexdigest(), perf_counter() - start
        return Library(out, domain, sha256, tuple(levels), seconds, 1, {"source": digest})


PLAIN = PlainBackend()
