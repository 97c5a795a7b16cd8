"""Attention of 8-bit integers in one launch, for sm_90a: scores, weights and results are rounded.

Weights are rounded to steps of their sum's share, so that all scores come before the first weight.
A warpgroup (``wgmma``) holds the scores of 64 queries with all keys, if these are few, or computes
them twice, from tiles of keys that pass through shared memory.  A call stands for one of
the product of queries and keys, the softmax and the product with values (``part``).  Where this
kernel computes them, the last one launches it and the others launch nothing; elsewhere kernels of
their own compute them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS, ROUNDED_PARTS
from tracea_graph.kernels.gpu.families import few_key_attention, warpgroup_attention
from tracea_graph.kernels.gpu.families.attention_projection import is_aligned
from tracea_graph.kernels.gpu.families.lifted_literals import Lifted, lifted
from tracea_graph.kernels.gpu.families.merged_roundings import merged_roundings
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.families.warpgroup_attention import STRIP, HeadTile
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    divisor,
    f32,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.epilogue_exchanges import Exchange
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import Instruction
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, ROW, Chain, Ref, Step

__all__ = ["CHAIN_ATTRIBUTES", "chain_of_part", "launch", "name", "parameters",
           "part_of", "refusal", "result_form", "shared", "with_sizes"]  # fmt: skip

_WIDE, _QUERIES = 64, 64
"""Maximum head size, and number of queries of a warpgroup."""
_WORD = 4
_FARTHEST = 64.0
"""Distance below a bound of scores down to which powers, and their sums, are normal numbers."""
_BYTES = MappingProxyType({"u8": DType.U8, "i8": DType.I8})
CHAIN_ATTRIBUTES = ("form", "factor", "step", "zero", "low", "high")
"""Attributes that give the chain of the last part, which the call does not hold."""
_EXCHANGE = Exchange("y", "", "", 2, _WIDE)
_BYTE_PITCH = 80
"""Bytes of a row of 64 bytes in shared memory: eight rows lie in different banks."""


@dataclass(frozen=True)
class ScoreChains:
    """How scores are computed, in units of ``unit``.

    ``chain`` computes them from the products, operands that vary by query, and values that only
    vary by key.  These are the results of ``keyed``, chains over the operands in ``rows``, and are
    computed once for all queries of a block.
    """

    chain: Chain
    unit: float
    rows: tuple[int, ...] = ()
    keyed: tuple[Chain, ...] = ()


def chain_of_part(
    part: str, form: str, factor: float, step: float, zero: float, low: float, high: float,
    dtype: str,
) -> Chain | None:  # fmt: skip
    """Return the chain of the product with values, which the call does not hold.

    ``form`` is "plain" for sums times ``factor``, "steps" for multiples of ``step`` nearest to
    that, in the type of the operands, or the type of bytes that hold such multiples plus ``zero``.
    """
    assert part == ROUNDED_PARTS[-1]
    steps = list[Step]()

    def add(op: str, *more: float) -> None:
        value: tuple[Ref, ...] = (len(steps),)
        steps.append(Step(op, (*value, *more)))

    if factor != 1.0:
        add("mul", factor)
    if form != "plain":
        add("div", step)
        add("round")
        if zero:
            add("add", zero)
        add("saturate", low, high)
    if form == "steps":
        add("mul", step)
    if not steps:
        return None
    return Chain((FULL,), tuple(steps), (len(steps),), (), (_BYTES.get(form, TYPES[dtype]),))


def result_form(chain: Chain | None, dtype: str) -> dict[str, Any] | None:
    """Return the attributes that give a chain of the last part; None if none do."""
    found: dict[str, Any] = {"form": "plain", "factor": 1.0, "step": 1.0, "zero": 0.0, "low": 0.0,
                             "high": 0.0}  # fmt: skip
    rest = list(chain.steps) if chain else []
    if chain is not None and chain.result_types[0] in _BYTES.values():
        found["form"] = chain.result_types[0].short
    elif rest and rest[-1].op == "mul" and len(rest) > 1:
        found["form"] = "steps"
    if rest and rest[0].op == "mul" and rest[0].args[0] == 0:
        found["factor"] = rest[0].args[1]
    for step in rest:
        if step.op == "div":
            found["step"] = step.args[1]
        elif step.op == "add":
            found["zero"] = step.args[1]
        elif step.op == "saturate":
            found["low"], found["high"] = step.args[1:]
    numbers = [v for n, v in found.items() if n != "form"]
    if not all(isinstance(n, float) for n in numbers):
        return None
    made = chain_of_part(ROUNDED_PARTS[-1], **found, dtype=dtype)
    return found if made == chain else None


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def part_of(call: Call) -> Call:
    """Return the product, the softmax or the product with values that a call stands for."""
    n, a, part = _named(call), call.attributes, call.attributes["part"]
    first, second, _ = ROUNDED_PARTS
    if part == first:
        made = CALLS.make("gemm", call.dtype, x=n["q"], w=n["k"], bias=None, inputs=n["inputs"],
                          y=[n["scores"]], layout="nk", chain=call.chain)  # fmt: skip
    elif part == second:
        numbers = {x: a[f"weight_{x}"] for x in ("step", "low", "high")}
        made = CALLS.make("softmax", call.dtype, x=[n["score_rows"]], y=n["weight_rows"],
                          log=False, stepped=True, **numbers)  # fmt: skip
    else:
        chain = chain_of_part(part, **{x: a[x] for x in CHAIN_ATTRIBUTES}, dtype=call.dtype)
        made = CALLS.make("gemm", call.dtype, x=n["weights"], w=n["v"], bias=None, inputs=[],
                          y=[n["y"]], layout="kn", chain=chain)  # fmt: skip
    return replace(made, step=call.step)


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the head sizes, on which the kernel's source depends."""
    places, views = CALLS.of(call).slices(call), list(skeleton.views)
    for operand in ("q", "k", "v"):
        at = places[operand].start
        view, own = views[at], call.views[at]
        assert view is not None and own is not None
        views[at] = replace(view, dims=(*view.dims[:-1], own.dims[-1]))
    return replace(skeleton, views=tuple(views))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    n, chain = _named(call), call.chain
    heads, sizes = [n["q"], n["k"], n["v"]], [n["q"].dims[-1], n["v"].dims[-1]]
    if not all(isinstance(size, int) and 1 <= size <= _WIDE for size in sizes):
        return f"heads have more than {_WIDE} columns"
    keys = n["k"].dims[2]
    if isinstance(keys, int) and not 0 < keys <= variant.params["most"]:
        return f"the number of keys is 0 or above {variant.params['most']}"
    if any(v.strides[-1] != 1 for v in (*heads, n["y"])):
        return "heads are not contiguous along their columns"
    if any(v.buffer.kind != "temp" for v in heads):
        return "heads are those of an input, which may lie at any address"
    if any(s == 0 for v in heads for s in v.strides[:-1]):
        return "heads are shared"
    if not all(is_aligned(s) for v in heads for s in (*v.strides[:-1], v.offset)):
        return "heads are not aligned to 16 bytes"
    if chain is not None and not set(chain.operands[1:]) <= {FULL, ROW}:
        return "scores are combined with numbers of a query"
    if call.attributes["weight_low"] > 0:
        return "weights have a least step above 0"
    return ""


def tile_of(call: Call, variant: Variant) -> HeadTile:
    """Return the shared-memory layout of a head."""
    n, p = _named(call), variant.params
    up = [-(-n[v].dims[-1] // 16) * 16 for v in "qv"]
    return HeadTile(p["groups"], p["keys"], p["stages"], *up)


def _strips_at(call: Call, variant: Variant) -> int:
    """Return the offset of the strips in which warps order their results."""
    tile = tile_of(call, variant)
    # all keys and values, or a ring for both, whose tiles have equal sizes; the next keys come
    # while values are read, so that it has three stages or more
    return tile.q_bytes + (tile.k_bytes + tile.v.nbytes if tile.stages == 1 else
                           tile.stages * tile.k_bytes)  # fmt: skip


def _scored(call: Call) -> ScoreChains:
    """Return how a call's scores are computed."""
    chain = merged_roundings(_times_first(replace(tensor_chain(call), stores=())))
    unit = 1.0
    last = chain.steps[-1] if chain.steps else None
    if last is not None and last.op == "mul" and chain.results == (_count(chain) - 1,):
        value, by = last.args
        if isinstance(value, int) and isinstance(by, float) and by > 0:
            chain, unit = replace(chain, steps=chain.steps[:-1], results=(value,)), by
    return _by_key(chain, unit)


def _times_first(chain: Chain) -> Chain:
    """Return a chain whose first factors of the products are one.

    That is as exact as products of numbers rounded to 16 bits, or of integers by rounded steps.
    """
    factor, last, first, taken = np.float32(1), 0, len(chain.operands), set[int]()
    while last not in chain.results:
        readers = [i for i, s in enumerate(chain.steps) if last in _values(s)]
        step = chain.steps[readers[0]] if len(readers) == 1 else None
        if step is None or step.op not in ("mul", "div") or step.args[0] != last:
            break
        by = step.args[1]
        if not isinstance(by, float) or by == 0:
            break
        factor = factor * np.float32(by) if step.op == "mul" else factor / np.float32(by)
        last = first + readers[0]
        taken.add(last)
    if not taken:
        return chain
    kept = [first + i for i in range(len(chain.steps)) if first + i not in taken]
    numbers = {**{i: i for i in range(first)}, last: first}
    numbers |= {old: first + 1 + new for new, old in enumerate(kept)}
    steps = tuple(chain.steps[i - first].renumbered(numbers.__getitem__) for i in kept)
    results = tuple(numbers[r] for r in chain.results)
    return replace(chain, steps=(Step("mul", (0, float(factor))), *steps), results=results)


def _by_key(chain: Chain, unit: float) -> ScoreChains:
    """Divide a chain into what varies by key alone, and what depends on products or queries."""
    first = len(chain.operands)
    rows = tuple(i for i, kind in enumerate(chain.operands) if kind == ROW)
    keyed = set(rows)
    for i, step in enumerate(chain.steps):
        reads = _values(step)
        if reads and keyed.issuperset(reads):
            keyed.add(first + i)
    rest = [s for i, s in enumerate(chain.steps) if first + i not in keyed]
    asked = [a for s in rest for a in _values(s)] + [*chain.results]
    needed = sorted(keyed.intersection(asked))
    tall = [i for i in range(first) if i not in keyed]
    kept = [first + i for i in range(len(chain.steps)) if first + i not in keyed]
    numbers = {old: new for new, old in enumerate([*tall, *needed, *kept])}
    own = {old: new for new, old in enumerate([*rows, *sorted(keyed - {*rows})])}
    natural = [DType.BOOL if chain.types[i] == "b" else DType.F32 for i in needed]
    types = chain.operand_types
    main = Chain(
        (FULL,) * (len(tall) + len(needed)),
        tuple(s.renumbered(numbers.__getitem__) for s in rest),
        tuple(numbers[r] for r in chain.results), (*(types[i] for i in tall), *natural),
    )  # fmt: skip
    steps = tuple(
        chain.steps[i - first].renumbered(own.__getitem__) for i in sorted(keyed - {*rows})
    )
    of_rows = tuple(types[i] for i in rows)
    made = (Chain((ROW,) * len(rows), steps, (own[i],), of_rows) for i in needed)
    return ScoreChains(main, unit, rows, tuple(made))


def _values(step: Step) -> list[int]:
    """Return the values that a step reads; literals are none."""
    return [a for a in step.args if isinstance(a, int)]


def tensor_chain(call: Call) -> Chain:
    """Return the chain of scores, or one that stores the products unchanged."""
    return call.chain or Chain((FULL,), (), (0,), (), (TYPES[call.dtype],))


def _count(chain: Chain) -> int:
    return len(chain.operands) + len(chain.steps)


def _barriers_at(call: Call, variant: Variant) -> int:
    """Return the offset of the barriers, after the values of each key."""
    return _keyed_at(call, variant, len(_scored(call).keyed))


def _keyed_at(call: Call, variant: Variant, number: int) -> int:
    """Return the offset of a value of each key in shared memory."""
    p = variant.params
    strips = 4 * p["groups"] * STRIP
    return _strips_at(call, variant) + strips + number * p["most"] * _WORD


def _bound(call: Call) -> float | None:
    """Return a bound of all scores of which powers can be taken relative to, not their maximum.

    None if there is none, or scores may lie too far below it.
    """
    scores = _scored(call)
    last = scores.chain.steps[-1] if scores.chain.steps else None
    if (
        last is None
        or last.op != "saturate"
        or scores.chain.results != (_count(scores.chain) - 1,)
    ):
        return None
    low, high = last.args[1:]
    if not isinstance(low, float) or not isinstance(high, float):
        return None
    return high if (high - low) * scores.unit <= _FARTHEST else None


def _statements(call: Call) -> Lifted:
    """Return the statements that compute scores, whose numbers are arguments of the kernel."""
    scores, found = _scored(call), list[dict[str, Any]]()
    first = len(scores.chain.operands) - len(scores.keyed)
    for i, chain in enumerate(scores.keyed):
        made = chain_parameters.chain_template_parameters(chain)
        (result,) = made["results"]
        found.append({"index": first + i, "element": result.element, "steps": made["steps"],
                      "result": result.expression})  # fmt: skip
    own = chain_parameters.chain_template_parameters(scores.chain, fused_near=True)
    return lifted({**own, "keyed": found})


def shared(call: Call, variant: Variant) -> int:
    barriers = 3 if variant.params["stages"] == 1 else 1 + 2 * variant.params["stages"]
    return _barriers_at(call, variant) + 8 * barriers


def name(call: Call) -> str:
    n, a = _named(call), call.attributes
    depth, depth_v = n["q"].dims[-1], n["v"].dims[-1]
    words = [f"quantized_attention_d{depth}" + (f"v{depth_v}" if depth != depth_v else "")]
    words += [_statements(call).key] if call.chain else []
    words += ["bounded"] if _bound(call) is not None else []
    return "_".join([*words, str(a["form"])])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    tile = warpgroup_attention.proved(tile_of(call, variant))
    n, form = _named(call), str(call.attributes["form"])
    scores, statements = _scored(call), _statements(call)
    made = statements.parameters
    first = len(made["operands"]) - len(scores.keyed)
    places = [_keyed_at(call, variant, i) for i in range(len(scores.keyed))]
    own = TYPES[call.dtype]
    return {
        **made,
        "literals": statements.names,
        "element": chain_parameters.ELEMENTS[own],
        "rounded": False,
        "y_element": chain_parameters.ELEMENTS[_BYTES.get(form, own)],
        "kind": call.dtype,
        "form": form,
        "guarded": False,
        "bounded": variant.params["stages"] > 1 and _bound(call) is not None,
        "instructions": [Instruction(tile.keys, False, True),
                         Instruction(tile.depth_v, True, False)],
        "inputs": chain_parameters.operands(tensor_chain(call))[1:],
        "rows": scores.rows,
        "tall": made["operands"][1:first],
        "keyed": [one | {"at": at} for one, at in zip(made["keyed"], places, strict=True)],
        "head_v": n["v"].dims[-1],
        "depth": tile.depth,
        "depth_v": tile.depth_v,
        "panels_v": tile.panels_v,
        "q": tile.q, "k": tile.k, "v": tile.v,
        "ring": tile.ring,
        "q_bytes": tile.q_bytes, "k_bytes": tile.k_bytes, "v_bytes": tile.v.nbytes,
        "exchange": _EXCHANGE,
        "byte_pitch": _BYTE_PITCH,
        "strips_at": _strips_at(call, variant),
        "strip_bytes": STRIP,
        "barriers_at": _barriers_at(call, variant),
    }  # fmt: skip


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; those of the first parts have no blocks."""
    taken, a, n = shared(call, variant), call.attributes, _named(call)
    if a["part"] != ROUNDED_PARTS[-1]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    own, keys, side = TYPES[call.dtype], variant.params["keys"], 64 * variant.params["groups"]
    batch, heads, queries, _ = n["q"].dims
    made: list[Argument] = [tensor_map(n["q"], own, (1, 1, _QUERIES, _WIDE))]
    made += [tensor_map(n[v], own, (1, 1, keys, _WIDE)) for v in "kv"]
    inputs = chain_parameters.operands(tensor_chain(call))[1:]
    for view, x in zip(n["inputs"], inputs, strict=True):
        kept = (0, 1, 3) if x.kind == ROW else (0, 1, 2, 3)
        made += [pointer(view, x.dtype), *(i32(view.strides[axis]) for axis in kept)]
    made += [pointer(n["y"], _BYTES.get(str(a["form"]), own)), *map(i32, n["y"].strides[:-1])]
    tiles = combine("ceildiv", queries, side)
    each: Extent = 1
    if variant.params["stages"] == 1:  # keys and values are copied once for several tiles
        each = few_key_attention.tiles_of_block(
            product((batch, heads, tiles)), tiles, variant.params["blocks"]
        )
    runs: Extent = combine("ceildiv", tiles, each)
    made += [divisor(runs), divisor(heads), i32(queries), i32(n["k"].dims[2])]
    numbers = ("weight_step", "weight_high", *CHAIN_ATTRIBUTES[1:])
    made += [f32(float(a[one])) for one in numbers]
    made += [i32(each), f32(_scored(call).unit), *map(f32, _statements(call).values)]
    bound = _bound(call) if variant.params["stages"] > 1 else None
    made += [f32(bound)] if bound is not None else []
    blocks = product((batch, heads, runs))
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
