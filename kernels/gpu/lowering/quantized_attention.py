"""Compute attention of 8-bit integers in one launch, with all its roundings.

Quantizers round scores, softmax weights and results, so that attention is a product, a softmax and
a product.  These remain calls, which architectures without the kernel and more keys use: each
becomes a part of the call that stands for all three (``families/quantized_attention.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, ROUNDED_PARTS
from tracea_graph.kernels.gpu.families.merged_roundings import LEVELS, is_level
from tracea_graph.kernels.gpu.families.quantized_attention import result_form
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.call_parts import replace_by_parts, stands_for
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import rounded_attention_choices
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FULL, ROW, Chain, Ref, Step
from tracea_graph.ops.index_map import dense_strides

__all__ = ["fold_quantized_attentions"]

_TYPES = ("f16", "bf16")
_Calls = tuple[Call, Call, Call]
"""The product of scores, the softmax, and the product with values."""


def fold_quantized_attentions(w: GpuProgramWriter) -> None:
    """Make each softmax with rounded weights, and the products around it, parts of one call."""
    for values in [c for c in w.calls if c.op == "gemm" and c.dtype in _TYPES]:
        calls = _calls_before(BufferUses(w.calls), values)
        if calls is None or _call_of(calls) is None:
            continue
        calls = _of_integers(w, _with_sources(w, calls))
        made = _call_of(calls)
        assert made is not None
        replace_by_parts(w, made, ROUNDED_PARTS, calls)


def _calls_before(uses: BufferUses, values: Call) -> _Calls | None:
    """Return the product of scores, the softmax that alone reads it, and what alone reads that."""
    read = values.views[0]
    softmax = uses.only_for(read, values) if read else None
    if softmax is None or (softmax.op, softmax.dtype) != ("softmax", values.dtype):
        return None
    if not softmax.attributes["stepped"] or softmax.attributes["log"] or not softmax.views[0]:
        return None
    scores = uses.only_for(softmax.views[0], softmax)
    if scores is None or (scores.op, scores.dtype) != ("gemm", values.dtype):
        return None
    return scores, softmax, values


def _with_sources(w: GpuProgramWriter, calls: _Calls) -> _Calls:
    """Let scores compute their masks themselves, from what a chain computes them from."""
    scores, *others = calls
    inputs = CALLS.of(scores).slices(scores)["inputs"]
    for i, at in enumerate(range(inputs.start, inputs.stop), 1):
        view, uses, chain = scores.views[at], BufferUses(w.calls), scores.chain
        makers = uses.writers.get(view.buffer, []) if view else []
        if chain is None or view is None or chain.operands[i] != ROW or len(makers) != 1:
            continue
        (maker,) = makers
        found = _source(maker, view)
        if found is None:
            continue
        source, own = found
        views = (*scores.views[:at], source, *scores.views[at + 1 :])
        new = replace(scores, views=views, chain=_computing(chain, i, own))
        w.calls[next(i for i, one in enumerate(w.calls) if one is scores)] = new
        scores, readers = new, BufferUses(w.calls).readers
        _, *made = maker.views
        if all(y and y.buffer.kind == "temp" and not readers.get(y.buffer) for y in made):
            w.drop(maker)
    return (scores, others[0], others[1])


def _source(maker: Call, view: View) -> tuple[View, Chain] | None:
    """Return where a view's numbers are computed from, and the chain that computes them."""
    chain = maker.chain
    if maker.op != "elementwise" or chain is None or chain.operands != (FULL,):
        return None
    x, *made = maker.views
    number = next((n for n, y in enumerate(made) if y and y.buffer == view.buffer), None)
    if number is None or x is None or any(y is None or not _is_line(y) for y in (x, *made)):
        return None
    if chain.result_types[number] is not DType.F32 or any(y and y.dims != x.dims for y in made):
        return None
    one = replace(chain, results=(chain.results[number],), stores=())
    return replace(view, buffer=x.buffer), one


def _is_line(view: View) -> bool:
    """Whether a view shows all of a buffer, in order."""
    return view.offset == 0 and view.strides == dense_strides(view.dims)


def _computing(chain: Chain, i: int, own: Chain) -> Chain:
    """Return a chain that computes its operand ``i`` itself, by another chain of one operand."""
    first, more = len(chain.operands), len(own.steps)

    def inner(ref: Ref) -> Ref:
        return ref if not isinstance(ref, int) else i if ref == 0 else first + ref - 1

    def outer(ref: Ref) -> Ref:
        if not isinstance(ref, int):
            return ref
        return inner(own.results[0]) if ref == i else ref + more * (ref >= first)

    steps = [Step(s.op, tuple(map(inner, s.args))) for s in own.steps]
    steps += [Step(s.op, tuple(map(outer, s.args))) for s in chain.steps]
    types = list(chain.operand_types)
    types[i] = own.operand_types[0]
    results = tuple(int(outer(r)) for r in chain.results)
    return replace(chain, steps=tuple(steps), results=results, dtypes=tuple(types))


def _of_integers(w: GpuProgramWriter, calls: _Calls) -> _Calls:
    """Let queries, keys and values be stored as integers, whose products are summed exactly.

    Their steps, which 16 bits do not hold exactly, become a factor of the sums.
    """
    scores, softmax, values = calls
    for at, reader in ((0, scores), (1, scores), (1, values)):
        now = values if reader is calls[2] else scores
        view = now.views[at]
        maker = BufferUses(w.calls).only_for(view, now) if view else None
        found = _unscaled(maker, now.dtype) if maker else None
        if maker is None or found is None:
            continue
        whole, step = found
        chain = now.chain or Chain((FULL,), (), (0,), (), (TYPES[now.dtype],))
        own = replace(now, chain=_multiplied(chain, step))
        for old, new in ((maker, whole), (now, own)):
            w.calls[next(i for i, one in enumerate(w.calls) if one is old)] = new
        scores, values = (scores, own) if now is values else (own, values)
    return scores, softmax, values


def _unscaled(maker: Call, dtype: str) -> tuple[Call, float] | None:
    """Return a call that stores integers instead of multiples of a step, and the step."""
    chain = maker.chain
    written = [v for o, v in CALLS.of(maker).each(maker) if o.written and v is not None]
    if chain is None or len(written) != 1 or chain.result_types != (TYPES[dtype],):
        return None
    last, first = len(chain.steps) - 1, len(chain.operands)
    if last < 2 or chain.results != (first + last,) or not is_level(chain, last - 1):
        return None
    (value, step), low, high = chain.steps[last].args, *chain.steps[last - 1].args[1:]
    if chain.steps[last].op != "mul" or value != first + last - 1 or not isinstance(step, float):
        return None
    if step <= 0 or any(abs(n) > LEVELS for n in (low, high)):
        return None
    return replace(
        maker, chain=replace(chain, steps=chain.steps[:-1], results=(first + last - 1,))
    ), step


def _multiplied(chain: Chain, factor: float) -> Chain:
    """Return a chain whose first operand is multiplied by a number first."""
    first = len(chain.operands)
    if chain.steps and chain.steps[0].op == "mul" and chain.steps[0].args[0] == 0:
        own = chain.steps[0].args[1]
        reads = [a for s in chain.steps[1:] for a in s.args if isinstance(a, int)]
        if isinstance(own, float) and 0 not in (*reads, *chain.results):
            made = Step("mul", (0, float(np.float32(own) * np.float32(factor))))
            return replace(chain, steps=(made, *chain.steps[1:]))

    def moved(ref: Ref) -> Ref:
        if not isinstance(ref, int):
            return ref
        return first if ref == 0 else ref + (ref >= first)

    steps = (Step(s.op, tuple(map(moved, s.args))) for s in chain.steps)
    results = tuple(int(moved(r)) for r in chain.results)
    return replace(chain, steps=(Step("mul", (0, factor)), *steps), results=results)


def _call_of(calls: _Calls) -> Call | None:
    """Return the call that stands for attention; None if no kernel computes it."""
    scores, softmax, values = [(c, dict[str, Any](CALLS.of(c).named(c))) for c in calls]
    form = result_form(values[0].chain, values[0].dtype)
    if form is None or any(len(one["y"]) != 1 for _, one in (scores, values)):
        return None
    if softmax[0].chain is not None or len(softmax[1]["x"]) != 1:
        return None
    named: dict[str, Any] = {"q": scores[1]["x"], "k": scores[1]["w"], "v": values[1]["w"]}
    if any(len(view.dims) != 4 for view in (*named.values(), values[1]["y"][0])):
        return None
    named |= {"inputs": scores[1]["inputs"], "scores": scores[1]["y"][0]}
    named |= {"score_rows": softmax[1]["x"][0], "weight_rows": softmax[1]["y"]}
    named |= {"weights": values[1]["x"], "y": values[1]["y"][0]}
    numbers = {f"weight_{n}": softmax[0].attributes[n] for n in ("step", "low", "high")}
    made = CALLS.make("quantized_attention", values[0].dtype, **named, **numbers, **form,
                      part=ROUNDED_PARTS[-1], chain=scores[0].chain)  # fmt: skip
    same = stands_for(made, ROUNDED_PARTS, calls)
    return made if same and rounded_attention_choices(made) else None
