"""Lower matmuls and attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, combine, product
from tracea_graph.kernels.gpu.lowering.block_quantized import block_quantized_call
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.float8 import float8_call, quantized_float8_call
from tracea_graph.kernels.gpu.lowering.integers import integer_call
from tracea_graph.kernels.gpu.lowering.norm_folding import (
    FoldedMatmul,
    by_columns,
    few_rows,
    fold_norm,
    normalised_later,
)
from tracea_graph.kernels.gpu.lowering.product_calls import product_call
from tracea_graph.kernels.gpu.lowering.program_writer import (
    HALVES,
    GpuProgramWriter,
)
from tracea_graph.kernels.gpu.lowering.row_ops import norm_call
from tracea_graph.kernels.gpu.lowering.two_of_four import epilogue_chain, two_of_four_call
from tracea_graph.kernels.gpu.tile_choice import LEAST_MANY, LEAST_SIDE
from tracea_graph.kernels.gpu.two_of_four_storage import TWO_OF_FOUR
from tracea_graph.kernels.gpu.zero_block_storage import COLUMN_BLOCKS
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import LackingError, Value
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.chain import FLOATS8, FULL, MAX_OPERANDS, Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.weight_layouts import ALIGNED, KN, NK

__all__ = ["lower_gemm", "lower_matmul"]


def product_type(w: GpuProgramWriter, dtype: DType) -> DType:
    """Return the type in which a matmul's result is stored between calls."""
    return w.narrow if dtype is DType.F32 else dtype


def lower_gemm(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    coded = type(p.layout) is BlockQuantized  # its subclasses are those of another backend
    if p.layout not in (KN, NK, COLUMN_BLOCKS, TWO_OF_FOUR) and not coded:
        raise LackingError(f"there is no GPU kernel for matrices stored as {p.layout.name!r}")
    x, weight, bias, epilogue_inputs, affine = p.split(operands)
    full = (*x.shape[:-1], p.n)
    types = p.epilogue.result_types if p.epilogue else (DType.F32,)
    dense = not p.integers and p.layout in (KN, NK)
    few = dense and not w.factor and few_rows(w, p, x)
    if p.norm and dense and not (few or w.factor) and (parts := _split(w, p, x)) > 1:
        return _in_parts(w, p, operands, targets, parts)
    if p.splits:
        made = [w.number(full)]
    elif p.norm:
        last = targets[1] if p.keep_sum else None
        made = [last or w.number(full)]
    else:
        made = [t or w.temp(product_type(w, d), full) for t, d in zip(targets, types, strict=True)]
    seen = [w.flat(v.stretched(full), len(full) - 1, 1) for v in epilogue_inputs]
    chain = p.epilogue
    if p.integers and p.integers.dtype in FLOATS8:
        quantized_float8_call(w, p, operands, seen, [w.matrix(v) for v in made])
        return _after(w, p, made, targets, affine)
    if p.integers:
        integer_call(w, p, operands, seen, [w.matrix(v) for v in made])
        return _after(w, p, made, targets, affine)
    if p.layout == COLUMN_BLOCKS:
        _block_sparse_call(w, p, operands, chain, seen, [w.matrix(v) for v in made])
        return _after(w, p, made, targets, affine)
    if p.layout == TWO_OF_FOUR:
        two_of_four_call(w, p, operands, chain, seen, [w.matrix(v) for v in made])
        return _after(w, p, made, targets, affine)
    if coded:
        block_quantized_call(w, p, operands, chain, seen, [w.matrix(v) for v in made])
        return _after(w, p, made, targets, affine)
    if w.factor:
        float8_call(w, p, x, weight, bias, seen, [w.matrix(v) for v in made])
        return _after(w, p, made, targets, affine)
    folded = fold_norm(w, p, x, weight, bias)
    transposed = few or folded is not None or _converted(w, weight) or _splits_tf32(w, p, x)
    layout = "kn" if p.layout == KN and not transposed else "nk"
    if folded is None:
        weight = by_columns(w, p, weight) if transposed else weight
        folded = FoldedMatmul(w.matrix(x), weight, bias, {})
    if chain is not None:
        chain, seen = normalised_later(w, chain, seen)
    product_call(
        w, folded.x, folded.weight, layout, chain, seen, [w.matrix(v) for v in made],
        folded.bias, folded.more,
    )  # fmt: skip
    return _after(w, p, made, targets, affine)


def _block_sparse_call(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], chain: Chain | None,
    seen: Sequence[Value], made: Sequence[Value],
) -> None:  # fmt: skip
    """Write a matmul over stored blocks, after a call that finds infinities and NaNs in x."""
    blocks, places = (operands[0], *p.stored(operands))[1:]
    bias = p.split(operands)[2]
    x = w.dense(w.matrix(operands[0]), w.narrow)
    odd = w.temp(DType.F32, x.shape[:1])
    times = w.typed(Chain((FULL,), (Step("mul", (0, 0.0)),), (1,)), [x], [odd])
    w.call("reduce", "f32", x=[x.view], y=odd.view, kind="sum", mean=False, chain=times)
    w.call(
        "gemm_blocks", w.multiplied, x=x.view, w=w.typed_as(blocks, w.narrow).view,
        map=places.view, odd=odd.view,
        bias=w.typed_as(bias, DType.F32).view if bias else None, inputs=[v.view for v in seen],
        y=[v.view for v in made], chain=epilogue_chain(w, chain, seen, made),
    )  # fmt: skip


def _after(
    w: GpuProgramWriter,
    p: GemmParams,
    made: list[Value],
    targets: Targets,
    affine: Sequence[Value],
) -> list[Value]:
    """Return a matmul's results from what its call wrote: splits of it, or a norm of it."""
    whole = made[0]
    if p.splits:
        starts = [sum(p.splits[:i]) for i in range(len(p.splits))]
        axis = len(whole.shape) - 1
        return [whole.part(axis, s, n) for s, n in zip(starts, p.splits, strict=True)]
    if p.norm is None:
        return made
    y = targets[0] or w.number(whole.shape)
    norm_call(w, p.norm, [w.matrix(whole)], None, affine, w.matrix(y))
    return [y, *made][: 1 + p.keep_sum]


def _converted(w: GpuProgramWriter, weight: Value) -> bool:
    """Whether a weight is converted before it is multiplied, and may be transposed with it.

    Kernels read weights faster column by column.  Constants are converted only once.
    """
    return w.narrow in HALVES and weight.dtype is not w.narrow


def _splits_tf32(w: GpuProgramWriter, p: GemmParams, x: Value) -> bool:
    """Whether warpgroups may multiply tf32 numbers by a constant, which they read by columns."""
    rows = w.about(product(x.shape[:-1]))
    many = rows is None or rows >= LEAST_MANY or not isinstance(product(x.shape[:-1]), int)
    whole = p.k % _ALIGNED == 0 and p.n >= LEAST_SIDE
    return w.multiplied.startswith("tf32") and many and whole


_ALIGNED = 4
"""Numbers of 32 bits in the unit by which tensor maps move along rows."""
_FEW_ROWS = 512
_LEAST_DEPTH, _MOST_PARTS = 192, 4


def _split(w: GpuProgramWriter, p: GemmParams, x: Value) -> int:
    """Return into how many parts to split the depth of a matmul that is followed by a norm.

    Only matmuls with few rows are split, because they have too few tiles for a GPU.
    """
    rows = w.about(product(x.shape[:-1]))
    if rows is None or rows > _FEW_ROWS:
        return 1
    taken = p.bias + p.epilogue_inputs
    fits = (n for n in range(min(_MOST_PARTS, MAX_OPERANDS - taken), 1, -1) if not p.k % n)
    return next((n for n in fits if p.k // n >= _LEAST_DEPTH and p.k // n % ALIGNED == 0), 1)


def _in_parts(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], targets: Targets, parts: int
) -> list[Value]:
    """Lower a split-K matmul as a batch of matmuls; the following norm adds up the parts.

    The norm's chain also adds the bias and applies the epilogue.
    """
    x, weight, bias, epilogue_inputs, affine = p.split(operands)
    assert p.norm is not None
    full = (*x.shape[:-1], p.n)
    left, depth = w.matrix(x), p.k // parts
    rows = left.shape[0]
    kn = p.layout == KN and not _converted(w, weight)
    weight = weight if kn else by_columns(w, p, weight)
    cut = ViewMove("reshape", (parts, depth, p.n) if kn else (p.n, parts, depth))
    right = w.typed_as(weight, w.narrow).moved(cut)
    right = right if kn else right.transposed((1, 0, 2))
    seen = View(left.view.buffer, (parts, rows, depth),
                (combine("mul", left.view.strides[1], depth), *left.view.strides),
                left.view.offset)  # fmt: skip
    sums = w.temp(DType.F32, (parts, rows, p.n))
    product_call(w, Value(seen, left.dtype), right, "kn" if kn else "nk", None, (), [sums])
    each = [
        Value(View(sums.view.buffer, (rows, p.n), (p.n, 1), product((rows, p.n, i))), DType.F32)
        for i in range(parts)
    ]
    more = [v.stretched(full) for v in ((bias,) if bias else ()) + tuple(epilogue_inputs)]
    data = [*each, *(w.flat(v, len(full) - 1, 1) for v in more)]
    y = targets[0] or w.number(full)
    total = (targets[1] or w.number(full)) if p.keep_sum else None
    chain = _added(p, parts)
    norm_call(w, p.norm, data, chain, affine, w.matrix(y), w.matrix(total) if total else None)
    return [y, total] if total else [y]


def _added(p: GemmParams, parts: int) -> Chain:
    """Return the epilogue, applied to the sum of the parts and the bias."""
    first = parts + p.bias
    count = first + p.epilogue_inputs
    steps, last = list[Step](), 0
    for i in range(1, first):
        steps.append(Step("add", (last, i)))
        last = count + len(steps) - 1
    if p.epilogue is None:
        return Chain((FULL,) * count, tuple(steps), (last,))
    before = len(steps)

    def ref(a: int | float) -> int | float:
        if isinstance(a, float):
            return a
        own = len(p.epilogue.operands) if p.epilogue else 0
        if a >= own:
            return count + before + a - own
        return last if a == 0 else first + a - 1

    steps += (Step(s.op, tuple(map(ref, s.args))) for s in p.epilogue.steps)
    types = (*(DType.F32,) * first, *p.epilogue.operand_types[1:])
    results = tuple(int(ref(r)) for r in p.epilogue.results)
    return Chain((FULL,) * count, tuple(steps), results, types)


def lower_matmul(
    w: GpuProgramWriter, p: MatMulParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    if p.integers:
        raise LackingError("GPU kernels multiply integers by constant matrices only")
    a, b, *epilogue_inputs = operands
    full = p.shapes([TensorSpec(v.dtype, v.shape) for v in operands])[2]
    left, right = w.through(a, p.reading(0)), w.through(b, p.reading(1))
    left = left.moved(ViewMove("unsqueeze", (0,))) if len(left.shape) == 1 else left
    right = right.moved(ViewMove("unsqueeze", (1,))) if len(right.shape) == 1 else right
    types = p.epilogue.result_types if p.epilogue else (DType.F32,)
    made = [
        Value(View.dense(t.view.buffer, full), t.dtype) if t else w.temp(product_type(w, d), full)
        for t, d in zip(targets, types, strict=True)
    ]
    outer = full[:-2]
    left = left.stretched((*outer, *left.shape[-2:]))
    right = right.stretched((*outer, *right.shape[-2:]))
    seen = [v.stretched(full) for v in epilogue_inputs]
    dtype = w.narrow
    left, right = w.typed_as(left, dtype), w.typed_as(right, dtype)
    values = _flat(left, right, [*seen, *made])
    by_depth = values[1].view.strides[-2] == 1 != values[1].view.strides[-1]
    axes = range(len(values[1].shape))
    turned = values[1].transposed((*axes[:-2], axes[-1], axes[-2])) if by_depth else values[1]
    product_call(
        w, values[0], turned, "nk" if by_depth else "kn", p.epilogue, values[2 : 2 + len(seen)],
        values[2 + len(seen) :],
    )  # fmt: skip
    shape = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])[0].shape or ()
    return [t or Value(View.dense(v.view.buffer, shape), v.dtype)
            for t, v in zip(targets, made, strict=True)]  # fmt: skip


def _flat(left: Value, right: Value, others: Sequence[Value]) -> list[Value]:
    """Flatten the batch into the rows if all matmuls share w and all rows have one stride."""
    outer = len(left.shape) - 2
    if outer and all(s == 0 for s in right.view.strides[:outer]):
        try:
            tall = [v.flat(outer + 1, 1) for v in (left, *others)]
        except ValueError:
            return [left, right, *others]
        own = View(right.view.buffer, right.shape[outer:], right.view.strides[outer:],
                   right.view.offset)  # fmt: skip
        return [tall[0], replace(right, view=own), *tall[1:]]
    return [left, right, *others]
