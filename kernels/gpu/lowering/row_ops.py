"""Lower norms, softmax, reductions, embeddings and GatherElements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, combine, product
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets, stored
from tracea_graph.kernels.gpu.lowering.program_writer import (
    HALVES,
    GpuProgramWriter,
    NormedRows,
    channels_last_order,
)
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import IDENTITY, LackingError, Shape, Value
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.embedding import BYTES, EmbeddingParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.reduction import FOLDS, LOG_OF_SUM, SHIFTED_EXP, ReduceParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams

__all__ = [
    "lower_arg",
    "lower_channel_norm",
    "lower_embedding",
    "lower_kv_append",
    "lower_norm",
    "lower_reduce",
    "lower_softmax",
    "lower_take",
    "lower_top_k",
    "norm_call",
    "rows_call",
]  # fmt: skip

_MOST_SIDE = 1024
"""Maximum side of an image whose pixels are reduced as a window."""
_MOST_AXES = 4
"""Maximum rank of the operands of GatherElements."""
FLOATS = (DType.F32, DType.F16, DType.BF16)
INTEGERS = (DType.I32, DType.I64)
COMPARED = (*FLOATS, *INTEGERS)
"""Element types that ArgMax and TopK compare and GatherElements picks."""


def norm_call(
    w: GpuProgramWriter, norm: Norm, data: Sequence[Value], chain: Chain | None,
    affine: Sequence[Value],
    y: Value, also: Value | None = None,
) -> None:  # fmt: skip
    """Write a norm of the rows that a chain computes from ``data``; all values are matrices.

    ``affine`` lists gamma and beta, if the norm has them.  ``also`` receives the rows before the
    norm.
    """
    gamma = w.typed_as(affine[0], DType.F32).view if norm.gamma else None
    beta = w.typed_as(affine[-1], DType.F32).view if norm.beta else None
    chain = chain or IDENTITY
    results = (Value(y.view, DType.F32), *((also,) if also else ()))
    chain = w.typed(replace(chain, results=chain.results[:1] * len(results)), data, results)
    w.call(
        "norm", y.dtype.short, x=[v.view for v in data], gamma=gamma, beta=beta, y=y.view,
        also=also and also.view, kind=norm.kind, epsilon=norm.epsilon,
        chain=None if chain == IDENTITY and data[0].dtype is y.dtype else chain,
    )  # fmt: skip
    plain = len(data) == 1 and not chain.steps and also is None and data[0].dtype is y.dtype
    if plain and y.dtype in HALVES and y.view.buffer.kind == "temp":
        w.normed[y.view.buffer] = NormedRows(
            y.view, data[0], norm, affine[0] if norm.gamma else None,
            affine[-1] if norm.beta else None,
        )  # fmt: skip


def lower_norm(
    w: GpuProgramWriter, p: NormParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    data, affine = operands[: p.data_operands], operands[p.data_operands :]
    kinds = p.prologue.operands if p.prologue else (FULL,)
    full = data[kinds.index(FULL)].shape
    made = [t or w.number(full) for t in targets]
    seen = [w.flat(v.stretched(full), len(full) - 1, 1) for v in data]
    into = [w.matrix(v) for v in made]
    norm_call(w, p.norm, seen, p.prologue, affine, into[0], into[1] if p.keep_sum else None)
    return made


def lower_embedding(
    w: GpuProgramWriter, p: EmbeddingParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write a call for the tables and indices of each pair of types, and the sum of their rows."""
    tables, numbers = operands[: 2 * p.tables : 2], operands[1 : 2 * p.tables : 2]
    if not {v.dtype for v in numbers} <= {DType.I32, DType.I64}:
        raise LackingError("GPU embedding kernels need indices in int32 or int64")
    rank = max(len(v.shape) for v in numbers)
    rows: Shape = tuple(_wide(numbers, rank, axis) for axis in range(rank))
    full = (*rows, tables[0].shape[-1])
    dtype = tables[0].dtype if tables[0].dtype in BYTES else w.narrow
    total = targets[-1] if p.keep_sum or not p.norm else None
    total = total or w.temp(dtype, full)
    own = numbers if rank > 1 else [v.moved(ViewMove("unsqueeze", (0,))) for v in numbers]
    rank, rows = max(rank, 2), rows if rank > 1 else (1, *rows)
    alike: dict[tuple[DType, DType], list[tuple[Value, Value]]] = {}
    for table, ids in zip(tables, own, strict=True):
        pair = table, w.flat(ids.stretched(rows), rank - 1, 1)
        alike.setdefault((table.dtype, ids.dtype), []).append(pair)
    parts = [total] if len(alike) == 1 else [w.temp(DType.F32, full) for _ in alike]
    for (kind, index), pairs, part in zip(alike, alike.values(), parts, strict=True):
        w.call(
            "embedding", part.dtype.short, tables=[table.view for table, _ in pairs],
            ids=[ids.view for _, ids in pairs], y=w.matrix(part).view, count=len(pairs),
            table_type=kind.short, index_type=index.short,
        )  # fmt: skip
    if len(parts) > 1:
        w.chain(_sum_of(len(parts)), parts, [total])
    if p.norm is None:
        return [total]
    made = targets[0] or w.temp(dtype, full)
    norm_call(w, p.norm, [w.matrix(total)], None, operands[2 * p.tables :], w.matrix(made))
    return [made, total] if p.keep_sum else [made]


def _sum_of(count: int) -> Chain:
    """Return the sum of ``count`` operands, in order."""
    steps = [Step("add", (0, 1))]
    steps += [Step("add", (count + i, i + 2)) for i in range(count - 2)]
    return Chain((FULL,) * count, tuple(steps), (count + len(steps) - 1,))


def _wide(numbers: Sequence[Value], rank: int, axis: int):  # type: ignore[no-untyped-def]
    sizes = [v.shape[axis - rank + len(v.shape)] for v in numbers if len(v.shape) >= rank - axis]
    return next((s for s in sizes if s != 1), 1)


def lower_take(
    w: GpuProgramWriter, p: GatherElementsParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x, ids = operands
    if p.rank > _MOST_AXES or ids.dtype not in INTEGERS or x.dtype not in COMPARED:
        raise LackingError(
            "GPU kernels of GatherElements need floats, int32 or int64 of up to four axes"
        )
    shape = (*x.shape[:-1], ids.shape[-1])
    target = targets[0]
    y = target if target and target.dtype is x.dtype else w.temp(x.dtype, shape)
    ids = ids.stretched(shape)
    wide = ViewMove("unsqueeze", tuple(range(_MOST_AXES - p.rank)))
    seen = [v.moved(wide).view if wide.ints else v.view for v in (x, ids, y)]
    w.call("take", x.dtype.short, x=seen[0], ids=seen[1], y=seen[2], index_type=ids.dtype.short)
    return [y]


# ---- along axes ------------------------------------------------------------------------------


def _in_rows(
    w: GpuProgramWriter,
    chain: Chain | None,
    operands: Sequence[Value],
    full: Shape,
    gone: Sequence[int],
) -> tuple[list[Value], Chain | None, list[int]]:
    """View operands as matrices whose columns are the axes ``gone``, copying them if needed.

    Returns the matrices; the chain, or None if the copy has applied it; and the axis order.
    """
    kept = [a for a in range(len(full)) if a not in gone]
    order, groups = [*kept, *gone], (len(kept), len(gone))
    seen = [v.stretched(full).transposed(order) for v in operands]
    try:
        return [v.flat(*groups) for v in seen], chain, order
    except ValueError:
        made = w.number(tuple(full[a] for a in order))
        w.chain(chain or IDENTITY, seen, [made])
        return [made.flat(*groups)], None, order


def lower_softmax(
    w: GpuProgramWriter, p: SoftmaxParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    full = p.full([v.shape for v in operands])
    axis = len(full) + p.axis
    data, chain, order = _in_rows(w, p.prologue, operands, full, [axis])
    transposed = tuple(full[a] for a in order)
    back = [order.index(a) for a in range(len(full))]
    (target,) = targets
    y = target if target and p.axis == -1 else w.number(transposed)
    rows_call(w, "softmax", data, chain, y.flat(len(full) - 1, 1), log=p.log)
    return [y if p.axis == -1 else y.transposed(back)]


def rows_call(
    w: GpuProgramWriter,
    op: str,
    data: Sequence[Value],
    chain: Chain | None,
    y: Value,
    **more: object,
) -> None:
    """Write a softmax or reduction of matrices' rows, or of those that a chain computes."""
    if chain is not None or data[0].dtype is not y.dtype:
        made = w.typed(chain or IDENTITY, data, [Value(y.view, DType.F32)])
        more["chain"] = made
    w.call(op, y.dtype.short, x=[v.view for v in data], y=y.view, **more)


def lower_reduce(
    w: GpuProgramWriter, p: ReduceParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    data, epilogue_inputs = operands[: p.data_operands], operands[p.data_operands :]
    full = p.full([v.shape for v in operands])
    gone = sorted(len(full) + a for a in p.axes)
    kept = tuple(d for a, d in enumerate(full) if a not in gone)
    direct = targets[0] is not None and not p.epilogue
    y = w.temp(DType.F32, kept)
    if direct and targets[0] is not None:
        y = Value(View.dense(targets[0].view.buffer, kept), targets[0].dtype)
    if p.kind == "mean" and (image := _image_of_bytes(p, data, gone)) is not None:
        _mean_of_pixels(w, p.prologue, image, y)
    elif p.kind == "log_sum_exp":
        _log_sum_exp(w, p.prologue, data, full, gone, y)
    else:
        seen, chain, _ = _in_rows(w, p.prologue, data, full, gone)
        rows_call(
            w, "reduce", seen, chain, y.flat(len(kept)), kind=FOLDS[p.kind],
            mean=p.kind == "mean",
        )  # fmt: skip
    shape = p.reduced(full)
    result = Value(View.dense(y.view.buffer, shape), y.dtype)
    if p.epilogue is None:
        return [result]
    shape = _broadcast([result, *epilogue_inputs])
    made = targets[0] or w.temp(stored(w, DType.F32, operands), shape)
    w.chain(p.epilogue, [v.stretched(shape) for v in (result, *epilogue_inputs)], [made])
    return [made]


def _image_of_bytes(p: ReduceParams, data: Sequence[Value], gone: Sequence[int]) -> Value | None:
    """Return the channels-last image of bytes whose pixels a reduction reduces, if it does."""
    chain, x = p.prologue, data[0]
    if len(data) > 1 or chain is None or x.dtype not in BYTES or chain.operands != (FULL,):
        return None
    sides = all(isinstance(size, int) and 0 < size <= _MOST_SIDE for size in x.shape[1:3])
    return x if len(x.shape) == 4 and [*gone] == [1, 2] and sides else None


def _mean_of_pixels(w: GpuProgramWriter, chain: Chain | None, x: Value, y: Value) -> None:
    """Write the mean of an image's pixels in two calls.

    The first makes float32 numbers of them, which their maker stores itself where it can
    (``lowering/result_folding.py``).
    """
    image = w.temp(DType.F32, x.shape)
    w.chain(chain or IDENTITY, [x], [image])
    made = y if y.dtype is DType.F32 else w.temp(DType.F32, y.shape)
    images, channels = y.shape
    whole = View.dense(made.view.buffer, (images, 1, 1, channels))
    w.call(
        "pool", "f32", x=image.view, y=whole, kind="average", kernel=x.shape[1:3],
        strides=(1, 1), dilations=(1, 1), pads=(0, 0),
    )  # fmt: skip
    if made is not y:
        w.copy(made, y)


def lower_arg(
    w: GpuProgramWriter, p: ArgParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    full = p.full([v.shape for v in operands])
    place = len(full) + p.axis
    kept = (*full[:place], *full[place + 1 :])
    own = targets[0] or w.temp(DType.I64, kept)
    y = Value(View.dense(own.view.buffer, kept), DType.I64)
    chain = p.prologue
    if chain is None and operands[0].dtype in INTEGERS:  # a float copy would round
        order = [*range(place), *range(place + 1, len(full)), place]
        seen = [w.flat(operands[0].transposed(order), len(kept), 1)]
    else:
        seen, chain, _ = _in_rows(w, chain, operands, full, [place])
    if chain is not None:
        x = w.temp(DType.F32, seen[0].shape)
        w.chain(chain, seen, [x])
        seen = [x]
    if seen[0].dtype not in COMPARED:
        raise LackingError("GPU kernels of ArgMin and ArgMax take floats, int32 and int64 only")
    w.call(
        "arg", seen[0].dtype.short, x=seen[0].view, y=y.flat(len(kept)).view, kind=p.kind,
        last=p.select_last,
    )  # fmt: skip
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    return [Value(View.dense(y.view.buffer, spec.shape or ()), DType.I64)]


def _broadcast(values: Sequence[Value]) -> Shape:
    rank = max(len(v.shape) for v in values)
    return tuple(_wide(values, rank, axis) for axis in range(rank))


def _log_sum_exp(
    w: GpuProgramWriter, chain: Chain | None, data: Sequence[Value], full: Shape,
    gone: Sequence[int],
    y: Value,
) -> None:  # fmt: skip
    seen, chain, _ = _in_rows(w, chain, data, full, gone)
    rows = seen[0].shape[0]
    most, total = w.temp(DType.F32, (rows,)), w.temp(DType.F32, (rows,))
    if chain is not None:
        x = w.temp(DType.F32, seen[0].shape)
        w.chain(chain, seen, [x])
        seen = [x]
    rows_call(w, "reduce", seen, None, most, kind="max", mean=False)
    column = Value(View(most.view.buffer, seen[0].shape, (1, 0)), DType.F32)
    rows_call(w, "reduce", [*seen, column], SHIFTED_EXP, total, kind="sum", mean=False)
    w.chain(LOG_OF_SUM, [total, most], [y.flat(len(y.shape))])


def lower_channel_norm(
    w: GpuProgramWriter, p: ChannelNormParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write a norm over each group's channels and positions, then scale and shift channels."""
    if not p.groups:
        return [_norm_over_channels(w, p, operands[0], operands[1:])]
    x, affine = w.dense(operands[0]), operands[1:]
    batch, channels, *space = x.shape
    each = combine("floordiv", channels, p.groups)
    rows = combine("mul", batch, p.groups)
    cols = combine("mul", each, product(tuple(space)))
    made = targets[0] or w.number(x.shape)
    seen = Value(View.dense(x.view.buffer, (rows, cols)), x.dtype)
    into = Value(View.dense(made.view.buffer, (rows, cols)), made.dtype)
    plain = replace(p.norm, gamma=False, beta=False)
    norm_call(w, plain, [seen], None, (), into)
    if affine:
        wide = [Value(View(v.view.buffer, x.shape, (0, 1, *(0 for _ in space)), v.view.offset),
                      v.dtype) for v in affine]  # fmt: skip
        steps = [Step("mul", (0, 1))] if p.norm.gamma else []
        if p.norm.beta:
            steps.append(Step("add", (len(wide) + 1 if steps else 0, len(wide))))
        chain = Chain((FULL,) * (1 + len(wide)), tuple(steps), (len(wide) + len(steps),))
        w.chain(chain, [made, *wide], [made])
    return [made]


def _norm_over_channels(
    w: GpuProgramWriter, p: ChannelNormParams, x: Value, affine: Sequence[Value]
) -> Value:
    """Write a norm of each position's channels, which are columns of images stored as rows."""
    last = channels_last_order(len(x.shape))
    y = w.number(x.shape, last)
    rows = [w.flat(v.transposed(last), len(last) - 1, 1) for v in (x, y)]
    lines = [w.flat(v, len(v.shape)) for v in affine]
    norm_call(w, p.norm, rows[:1], None, lines, rows[1])
    return y


def lower_top_k(
    w: GpuProgramWriter, p: TopKParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x = operands[0]
    if x.dtype not in COMPARED:
        raise LackingError("GPU kernels of TopK take floats, int32 and int64 only")
    shape = (*x.shape[:-1], p.k)
    y, index = (w.temp(dtype, shape) for dtype in (x.dtype, DType.I64))
    w.call(
        "top_k", x.dtype.short, x=w.matrix(x).view, y=w.matrix(y).view,
        index=w.matrix(index).view, smallest=not p.largest,
    )  # fmt: skip
    return [y, index]


def lower_kv_append(
    w: GpuProgramWriter, p: KvCacheAppendParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    if p.stored == "i8":
        raise LackingError("GPU kernels append no rows to caches of integers")
    new, *past, positions, _ = operands
    y = targets[0]
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    if p.stored != "f32":
        new = w.typed_as(new, spec.dtype or new.dtype)
    if y is None or y.dtype is not new.dtype:
        y = w.temp(new.dtype, spec.shape or ())
    part = new.part(2, p.offset, p.heads * p.size)
    heads = (ViewMove("reshape", (0, 0, p.heads, p.size)), ViewMove("transpose", (0, 2, 1, 3)))
    held = w.typed_as(past[0], new.dtype).view if past else None
    w.call(
        "kv_append", new.dtype.short, new=w.through(part, IndexMap(heads)).view, past=held,
        positions=positions.view, y=y.view,
    )  # fmt: skip
    return [y]
