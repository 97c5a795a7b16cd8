"""Lowering: a fused region becomes a program of kernel calls.

Extents in a program are symbols bound by the node's own inputs, named ``s0``, ``s1`` …; a
dimension the graph knows only as an expression is a symbol like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.ops.attention import MASKS, AttentionParams
from tracea_graph.ops.chain import COL, FULL, Chain
from tracea_graph.ops.elementwise import ElementwiseParams, is_clipped
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import LAYOUTS, PANEL, GemmParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.program import Buffer, Call, GemmDriver, Program, Temp, View
from tracea_graph.ttg import Region, TileGraph

__all__ = ["DRIVERS", "lower"]

DRIVERS: tuple[GemmDriver, ...] = (
    GemmDriver(max_rows=4, prefetch=0),
    GemmDriver(max_rows=32),
    GemmDriver(max_rows=512, row_chunk=256),
    GemmDriver(max_rows=2**31 - 1, row_chunk=256),
)
"""Blocking per row count where nothing was tuned: the runtime's own choice."""

Shape = tuple[Extent, ...]


@dataclass
class _Writer:
    """Collects a program: local symbols, temporaries and calls."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    symbols: dict[str, tuple[int, int]] = field(default_factory=dict)
    temps: list[tuple[DType, Extent]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def call(self, kernel: str, *views: View | None, **extra: object) -> None:
        self.calls.append(Call(kernel, views, **extra))  # type: ignore[arg-type]

    def temp(self, shape: Shape) -> View:
        """Dense float32 scratch."""
        self.temps.append((DType.F32, product(shape)))
        return _dense(Buffer("temp", len(self.temps) - 1), shape)

    def done(self) -> Program:
        used = [
            [i for i, c in enumerate(self.calls) if _touches(c, Buffer("temp", t))]
            for t in range(len(self.temps))
        ]
        temps = tuple(Temp(d, n, u[0], u[-1]) for (d, n), u in zip(self.temps, used, strict=True))
        return Program(self.inputs, self.outputs, self.symbols, temps, tuple(self.calls))


def _touches(call: Call, buffer: Buffer) -> bool:
    return any(v is not None and v.buffer == buffer for v in call.views)


def _dense(buffer: Buffer, shape: Shape) -> View:
    return View(buffer, shape, _strides(shape))


def _strides(shape: Shape) -> Shape:
    strides: list[Extent] = []
    step: Extent = 1
    for dim in reversed(shape):
        strides.insert(0, step)
        step = combine("mul", step, dim)
    return tuple(strides)


def _localise(
    specs: Sequence[TensorSpec], broadcasts: bool
) -> tuple[tuple[TensorSpec, ...], dict[str, tuple[int, int]]]:
    """Specs over local symbols, and where each symbol is bound.

    Where operands broadcast, min(n, …) is n: see :func:`is_clipped`.
    """
    names: dict[Extent, str] = {}
    where: dict[str, tuple[int, int]] = {}
    symbols = sorted({d for s in specs for d in s.shape or () if isinstance(d, str)})
    known = symbols if broadcasts else []
    local = []
    for i, spec in enumerate(specs):
        dims: list[Extent] = []
        for axis, dim in enumerate(spec.shape or ()):
            dim = next((d for d in known if is_clipped(dim, d)), dim)
            if not isinstance(dim, int):
                name = names.setdefault(dim, f"s{len(names)}")
                where.setdefault(name, (i, axis))
                dim = name
            dims.append(dim)
        local.append(TensorSpec(spec.dtype, tuple(dims)))
    return tuple(local), where


_BROADCASTING = (ElementwiseParams, EmbeddingParams)


def lower(graph: TileGraph, region: Region) -> Program:
    """The program of one fused region.  Raises TypeError for a region that is not fused."""
    if not region.fused:
        raise TypeError(f"{region.op} is not a fused region")
    specs = [graph.spec(v) for v in region.operands]
    local, where = _localise(specs, isinstance(region.params, _BROADCASTING))
    outputs = region.params.infer(local)
    writer = _Writer(local, outputs, where)
    params = region.params
    if isinstance(params, GemmParams):
        _lower_gemm(writer, params)
    elif isinstance(params, NormParams):
        _lower_norm(writer, params)
    elif isinstance(params, ElementwiseParams):
        _lower_elementwise(writer, params)
    elif isinstance(params, AttentionParams):
        _lower_attention(writer, params)
    else:
        _lower_embedding(writer, params)
    return writer.done()


# ---- views -----------------------------------------------------------------------------


def _input(w: _Writer, index: int) -> View:
    return _dense(Buffer("input", index), w.inputs[index].shape or ())


def _matrix(buffer: Buffer, shape: Shape) -> View:
    """A dense tensor as ``[rows, columns]``."""
    rows, columns = product(shape[:-1]), shape[-1]
    return View(buffer, (rows, columns), (columns, 1))


def _over_rows(w: _Writer, index: int, kind: str, rows: Extent, columns: Extent) -> View:
    """An epilogue operand as a ``[rows, columns]`` view; stride 0 where it repeats."""
    strides: dict[str, Shape] = {"full": (columns, 1), "row": (0, 1), "col": (1, 0)}
    return View(Buffer("input", index), (rows, columns), strides.get(kind, (0, 0)))


def _broadcast(buffer: Buffer, shape: Shape, full: Shape) -> View:
    """A tensor seen through a larger shape: stride 0 along repeated axes."""
    strides = (0,) * (len(full) - len(shape)) + _strides(shape)
    dims = (1,) * (len(full) - len(shape)) + tuple(shape)
    axes = zip(strides, dims, full, strict=True)
    steps = tuple(0 if d == 1 and f != 1 else s for s, d, f in axes)
    return View(buffer, full, steps)


# ---- one function per word -------------------------------------------------------------


def _norm_call(w: _Writer, norm: Norm, x: View, first: int, y: View) -> None:
    gamma = _input(w, first) if norm.gamma else None
    beta = _input(w, first + norm.gamma) if norm.beta else None
    kind = ("layer", "rms").index(norm.kind)
    w.call("norm", x, gamma, beta, y, ints=(kind,), floats=(norm.epsilon,))


def _result_and_sum(w: _Writer, keep_sum: bool, shape: Shape) -> tuple[View, View]:
    """Where a normalised op writes y, and where the sum before it: its own result, or with y."""
    y = _matrix(Buffer("output", 0), shape)
    return y, _matrix(Buffer("output", 1), shape) if keep_sum else y


def _lower_gemm(w: _Writer, p: GemmParams) -> None:
    shape = w.outputs[0].shape or ()
    x = _matrix(Buffer("input", 0), w.inputs[0].shape or ())
    y, total = _result_and_sum(w, p.keep_sum, shape)
    panels: Shape = (-(-p.n // PANEL), p.k, PANEL)
    weight = _dense(
        Buffer("input", 1), panels if p.layout == "panels" else w.inputs[1].shape or ()
    )
    bias = _input(w, 2) if p.bias else None
    kinds = p.epilogue.operands[1:] if p.epilogue else ()
    first = 2 + p.bias
    extras = [_over_rows(w, first + i, kind, x.dims[0], shape[-1]) for i, kind in enumerate(kinds)]
    w.call(
        "gemm", x, weight, bias, *extras, total,
        ints=(LAYOUTS.index(p.layout),), chain=p.epilogue, drivers=DRIVERS,
    )  # fmt: skip
    if p.norm is not None:
        _norm_call(w, p.norm, total, first + len(kinds), y)


def _lower_norm(w: _Writer, p: NormParams) -> None:
    shape = w.outputs[0].shape or ()
    y, total = _result_and_sum(w, p.keep_sum, shape)
    if p.prologue is None:
        total = _matrix(Buffer("input", 0), shape)
    else:
        views = [
            _over_rows(w, i, kind, total.dims[0], shape[-1])
            for i, kind in enumerate(p.prologue.operands)
        ]
        w.call("elementwise", *views, total, chain=p.prologue)
    _norm_call(w, p.norm, total, p.data_operands, y)


def _lower_elementwise(w: _Writer, p: ElementwiseParams) -> None:
    full = w.outputs[0].shape or ()
    chain = _columns_of(p.chain, [s.shape or () for s in w.inputs], full)
    views = [_broadcast(Buffer("input", i), s.shape or (), full) for i, s in enumerate(w.inputs)]
    results = [_dense(Buffer("output", i), full) for i in range(len(w.outputs))]
    w.call("elementwise", *views, *results, chain=chain)


def _columns_of(chain: Chain, shapes: Sequence[Shape], full: Shape) -> Chain:
    """The chain with two kinds only: an operand moves along the last axis, or it does not.

    The runtime merges axes as the actual sizes allow, so finer kinds would promise too much.
    """
    kinds = tuple(FULL if s and s[-1] == full[-1] else COL for s in shapes)
    return replace(chain, operands=kinds)


def _lower_attention(w: _Writer, p: AttentionParams) -> None:
    batch, queries = (w.inputs[0].shape or ())[:2]
    keys = (w.inputs[1].shape or ())[1]

    def heads(index: int, rows: Extent, size: int) -> View:
        width = p.widths[index]
        strides: Shape = (combine("mul", rows, width), size, width, 1)
        return View(
            Buffer("input", index), (batch, p.heads, rows, size), strides, p.offsets[index]
        )

    full: Shape = (batch, p.heads, queries, keys)
    mask = None
    if p.mask != "none":
        mask = _broadcast(Buffer("input", 3), w.inputs[3].shape or (), full)
    width = p.heads * p.head_v
    y = View(
        Buffer("output", 0),
        (batch, p.heads, queries, p.head_v),
        (combine("mul", queries, width), p.head_v, width, 1),
    )
    w.call(
        "attention",
        heads(0, queries, p.head),
        heads(1, keys, p.head),
        heads(2, keys, p.head_v),
        mask,
        y,
        ints=(MASKS.index(p.mask), int(p.zero_rows)),
        floats=(p.scale,),
    )


def _lower_embedding(w: _Writer, p: EmbeddingParams) -> None:
    shape = w.outputs[0].shape or ()
    tables = [_input(w, 2 * t) for t in range(p.tables)]
    ids = [
        _broadcast(Buffer("input", 2 * t + 1), w.inputs[2 * t + 1].shape or (), shape[:-1])
        for t in range(p.tables)
    ]
    kind = w.inputs[1].dtype or DType.I64
    y, total = _result_and_sum(w, p.keep_sum, shape)
    target = _dense(total.buffer, shape)
    w.call("embedding", *tables, *ids, target, ints=(p.tables, kind.onnx))
    if p.norm is not None:
        _norm_call(w, p.norm, total, 2 * p.tables, y)
