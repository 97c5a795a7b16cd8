"""When attention of 8-bit integers is one launch on GPUs, and how its scores are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.programs import program_of, run_program
from tests.kernels.gpu.quantized_cases import (
    CASES,
    added_scores,
    attended,
    masked_scores,
    rounded_scores,
)
from tracea_graph.ir import DType, TensorSpec, evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, ROUNDED_PARTS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.families import quantized_attention
from tracea_graph.kernels.gpu.families.merged_roundings import merged_roundings
from tracea_graph.kernels.gpu.kernel_selection import (
    for_variant,
    kernel_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch_order import launch_order
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.quantized_attention import fold_quantized_attentions
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.kernels.program import Buffer, Call, LibraryContents, Program, View
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.softmax import SoftmaxParams

_OP = "quantized_attention"
_SCORES = rounded_scores(DType.F16)


def whole(
    keys: int = 128, form: str = "u8", chain: Chain | None = _SCORES, **changed: Any
) -> Call:
    """A call of attention with these keys, and with other operands or attributes."""
    sizes = (2, 3, 128, keys)
    make = attended(DType.F16, sizes, (32, 32), chain, form)
    return _made(make(Memory(), np.random.default_rng(0))[0], **changed)


def _made(call: Call, **changed: Any) -> Call:
    named: dict[str, Any] = CALLS.of(call).named(call)
    given = {**named, **call.attributes, "chain": call.chain, **changed}
    return CALLS.make(call.op, call.dtype, **given)


def parts(call: Call) -> list[Call]:
    """The products and the softmax that a call stands for, which use the same buffers."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    shared = {
        "score_rows": replace(named["score_rows"], buffer=named["scores"].buffer),
        "weights": replace(named["weights"], buffer=named["weight_rows"].buffer),
    }
    made = _made(call, **shared)
    return [quantized_attention.part_of(made.having(part=part)) for part in ROUNDED_PARTS]


def folded(calls: list[Call]) -> list[Call]:
    w = GpuProgramWriter((), ())
    w.calls.extend(calls)
    fold_quantized_attentions(w)
    return w.calls


@pytest.mark.parametrize("form", ["u8", "i8", "steps", "plain"])
def test_attention_is_one_launch(form: str) -> None:
    made = folded(parts(whole(form=form)))
    assert [(c.op, c.attributes["part"]) for c in made] == [(_OP, p) for p in ROUNDED_PARTS]
    assert made[-1].attributes["form"] == form
    launches = [launches_for(c)[0] for c in made]
    assert [launch.blocks({})[0] for launch, _ in launches] == [0, 0, 2 * 3 * 2]
    assert len({symbol for _, symbol in launches}) == 1


def test_explain_counts_what_is_launched() -> None:
    """One launch for up to 2048 keys; three for more, and where sizes are unknown."""
    call = whole()
    views = (
        v and replace(v, dims=tuple("s" if d == 128 else d for d in v.dims)) for v in call.views
    )
    calls = tuple(folded(parts(replace(call, views=tuple(views)))))
    program = Program((), (), {"s": (0, 1)}, (), calls)

    def names(**sizes: int) -> list[str]:
        return [one.kernel for one in launch_order(program, frozenset(), sizes)]

    assert names(s=128) == names(s=257) == names(s=2048) == [f"{_OP}_f16"]
    assert names(s=2049) == names() == ["gemm_f16", "softmax_f16", "gemm_f16"]


def test_keys_choose_the_tile() -> None:
    call, named = whole(), dict[str, Any](CALLS.of(whole()).named(whole()))
    varying = {n: replace(named[n], dims=(2, 3, "n", 32)) for n in "kv"}
    choices = variants_of(_made(call, **varying))
    used = {n: next(v.tile for v, when in choices if evaluate(when, {"n": n}) > 0)
            for n in (1, 128, 129, 256, 257, 2048)}  # fmt: skip
    assert used == {1: "64x128", 128: "64x128", 129: "64x256", 256: "64x256", 257: "128x64x8",
                    2048: "128x64x8"}  # fmt: skip


def test_many_keys_are_one_launch() -> None:
    """Of blocks that have 128 queries each."""
    made = folded(parts(whole(384, "i8")))
    launches = [launches_for(c)[0] for c in made]
    assert [launch.blocks({})[0] for launch, _ in launches] == [0, 0, 2 * 3]
    assert all(symbol.endswith("128x64x8") for _, symbol in launches)


def test_bounded_scores_need_no_maximum() -> None:
    """Powers are taken relative to a bound, unless scores may lie too far below it."""
    calls = [whole(384, chain=replace(_SCORES, steps=_other_numbers(_SCORES, factor)))
             for factor in (1.0, 3.0)]  # fmt: skip
    calls += [whole(384, chain=added_scores(DType.F16)), whole(384, chain=None)]
    variant = variants_of(calls[0])[0][0]
    target = Target(CUDA, ARCHITECTURES["sm_90a"])
    texts = [emit_kernel(c, variant, target).text for c in calls]
    assert ["highest_score" in text for text in texts] == [True, False, False, False]
    assert ["fmaxf(highest[h]" in text for text in texts] == [False, True, True, True]
    assert len({launches_for(c)[0][1] for c in calls}) == 4


def test_other_architectures_compute_the_parts() -> None:
    old, calls = ARCHITECTURES["sm_80"], parts(whole())
    for call, own in zip(folded(calls), calls, strict=True):
        variant = next(v for v, _ in variants_of(call) if v.refusal(old) is None)
        assert for_variant(call, variant) == own


def test_what_others_read_is_written() -> None:
    calls = parts(whole())
    read = CALLS.make("copy", "b2", x=calls[1].views[-2], y=calls[0].views[0])
    assert [c.op for c in folded([*calls, read])] == ["gemm", "softmax", "gemm", "copy"]


def test_plain_weights_stay_apart() -> None:
    first, softmax, last = parts(whole())
    plain = softmax.having(stepped=False)
    assert [c.op for c in folded([first, plain, last])] == ["gemm", "softmax", "gemm"]


@pytest.mark.parametrize(
    ("operand", "changed", "why"),
    [
        ("q", {"dims": (2, 3, 128, 96)}, "more than 64 columns"),
        ("k", {"dims": (2, 3, 257, 32)}, "above 256"),
        ("v", {"strides": (1, 1, 1, 96)}, "not contiguous"),
        ("k", {"strides": (1024, 0, 32, 1)}, "shared"),
        ("q", {"strides": (1024, 32, 36, 1)}, "not aligned"),
    ],
)
def test_other_layouts_are_refused(operand: str, changed: dict[str, Any], why: str) -> None:
    call = whole(256)
    variant = variants_of(call)[0][0]
    named: dict[str, Any] = CALLS.of(call).named(call)
    other = _made(call, **{operand: replace(named[operand], **changed)})
    assert why in quantized_attention.refusal(other, variant)
    assert quantized_attention.refusal(call, variant) == ""


def test_kernels_are_made_from_their_names() -> None:
    """That of all parts, and those of parts: the product with values has its own chain."""
    calls = folded(parts(whole()))
    contents = LibraryContents((), [n for c in calls for n in _kernels(c)], [_SCORES])
    made = {one.symbol for one in sources_of(contents, ["sm_90a"])["sm_90a"]}
    assert len(made) == 4 and encode(Program((), (), {}, (), tuple(calls)))
    assert sum(_OP in symbol for symbol in made) == 1


def _kernels(call: Call) -> list[str]:
    choices = variants_of(call)
    return [kernel_of(call, choices[i][0]) for i in (0, -1)]


def test_scores_take_few_steps() -> None:
    """The second rounding of scores changes nothing, and a mask is rounded once for each key."""
    call = whole()
    variant = variants_of(call)[0][0]
    text = emit_kernel(call, variant, Target(CUDA, ARCHITECTURES["sm_90a"])).text
    steps = text.partition("DEV void apply")[2].partition("y0 = ")[0].count("const vf v")
    assert steps == 5
    assert "round_even(v0)" in text.partition("DEV void apply")[2]


@pytest.mark.compiler
def test_masks_of_each_query_leave_registers() -> None:
    """Libraries refuse kernels that keep numbers in local memory, and take three launches."""
    target, sources = Target(CUDA, ARCHITECTURES["sm_90a"]), list[KernelSource]()
    for case in (c for c in CASES if c.name.endswith((" i8", " steps"))):  # some of many keys
        call, _ = case.make(Memory(), np.random.default_rng(0))
        sources += [
            emit_kernel(call, find(call, target.architecture, t), target) for t in case.tiles
        ]
    found = compile_sources(sources, ["sm_90a"])
    assert len(found) == 4 and [b.refused for b in found] == [None] * 4


def test_layers_share_a_kernel() -> None:
    """Their numbers are arguments: the text of a kernel has none."""
    calls = [whole(chain=replace(_SCORES, steps=_other_numbers(_SCORES, factor)))
             for factor in (1.0, 1.5)]  # fmt: skip
    variant = variants_of(calls[0])[0][0]
    texts = {emit_kernel(c, variant, Target(CUDA, ARCHITECTURES["sm_90a"])).text for c in calls}
    launches = [launches_for(c)[0][0] for c in calls]
    assert len(texts) == 1 and len({one.symbol for one in launches}) == 1
    assert launches[0].arguments != launches[1].arguments
    contents = LibraryContents((), [kernel_of(c, variant) for c in calls],
                               [c.chain for c in calls if c.chain])  # fmt: skip
    assert len(contents.kernels) == 2 and len(sources_of(contents, ["sm_90a"])["sm_90a"]) == 1


def _other_numbers(chain: Chain, factor: float) -> tuple[Step, ...]:
    """Steps whose divisors and factors differ; bounds do not."""
    return tuple(
        Step(s.op, tuple(a * factor if isinstance(a, float) else a for a in s.args))
        if s.op in ("mul", "div") and s.args[1] != 5.656854152679443 else s
        for s in chain.steps
    )  # fmt: skip


def test_merged_roundings_are_equal() -> None:
    rng = np.random.default_rng(4)
    sums = rng.normal(0, 60, 4000).astype(np.float32)
    masks = np.where(rng.random(4000) < 0.5, 0, rng.normal(0, 9, 4000)).astype(np.float32)
    free = replace(_SCORES, stores=())
    short = merged_roundings(free)
    assert len(short.steps) < len(free.steps) - 4
    (want,), (got,) = free.reference([sums, masks]), short.reference([sums, masks])
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "between",
    [
        (Step("mul", (3, 0.5)), Step("div", (4, 0.3))),  # other integers
        (Step("mul", (3, 0.5)), Step("add", (4, 3))),  # reads the first ones twice
    ],
)
def test_other_roundings_stay(between: tuple[Step, ...]) -> None:
    steps = (Step("div", (0, 0.5)), Step("round", (1,)), Step("saturate", (2, -128.0, 127.0)),
             *between, Step("round", (5,)), Step("saturate", (6, -128.0, 127.0)))  # fmt: skip
    chain = Chain(("full",), steps, (7,))
    assert merged_roundings(chain) == chain


def test_narrower_bounds_stay() -> None:
    steps = (
        Step("round", (0,)), Step("saturate", (1, -128.0, 127.0)), Step("mul", (2, 0.3)),
        Step("div", (3, 0.3)), Step("round", (4,)), Step("saturate", (5, -100.0, 100.0)),
    )  # fmt: skip
    found = merged_roundings(Chain(("full",), steps, (6,)))
    assert [s.op for s in found.steps] == ["round", "saturate", "saturate"]


def test_forms_that_no_attribute_gives() -> None:
    halves = Step("div", (0, 0.5)), Step("div", (1, 0.5))
    twice = Chain(("full",), halves, (2,), (), (DType.F16,))
    assert quantized_attention.result_form(twice, "f16") is None
    assert folded(parts(whole(chain=masked_scores(DType.F16))))[0].op == _OP


def _rounded(step: float, low: float, high: float) -> tuple[Step, ...]:
    return (Step("div", (0, step)), Step("round", (1,)), Step("saturate", (2, low, high)),
            Step("mul", (3, step)))  # fmt: skip


def _region() -> RegionParams:
    """Attention of products that are rounded to steps of their own, as scores and weights are."""
    made = [
        RegionStep(MatMulParams(epilogue=Chain(("full",), _rounded(step, -131.0, 124.0), (4,))),
                   (0, 1 + i), narrow="f16")
        for i, step in enumerate((0.0515, 0.0542, 0.0368))
    ]  # fmt: skip
    scores = Chain(("full",), _rounded(0.29, -128.0, 127.0), (4,))
    weights = Chain(("full",), _rounded(1 / 255, 0.0, 255.0), (4,))
    to_bytes = (Step("div", (0, 0.021)), Step("round", (1,)), Step("add", (2, 121.0)),
                Step("saturate", (3, 0.0, 255.0)))  # fmt: skip
    last = Chain(("full",), to_bytes, (4,), stores=(DType.U8,))
    made += [
        RegionStep(MatMulParams((), (0, 1, 3, 2), scores), (4, 5), narrow="f16"),
        RegionStep(SoftmaxParams(-1), (7,), narrow="f16"),
        RegionStep(ElementwiseParams(weights), (8,), narrow="f16"),
        RegionStep(MatMulParams(epilogue=last), (9, 6), narrow="f16"),
        RegionStep(LayoutParams("transpose", (0, 2, 1, 3)), (10,)),
    ]
    return RegionParams(4, tuple(made), (11,))


def _operands(batch: int = 2, rows: int = 70) -> list[np.ndarray]:
    """Numbers that 16 bits hold: rows, and matrices for queries, keys and values."""
    rng = np.random.default_rng(3)
    x = rng.integers(-16, 17, (batch, 3, rows, 32)) / 8
    return [x.astype(np.float32), *(
        (rng.integers(-16, 17, (batch, 3, 32, 32)) / 32).astype(np.float32) for _ in "qkv"
    )]  # fmt: skip


def test_operands_are_stored_as_integers() -> None:
    specs = [TensorSpec(DType.F32, a.shape) for a in _operands()]
    made = program_of(_region(), specs, DType.F16).calls
    makers = [c for c in made if c.op == "gemm"]
    assert [c.op for c in made if c.op != "elementwise"] == ["gemm"] * 3 + [_OP] * 3
    assert all(c.chain and c.chain.steps[-1].op == "saturate" for c in makers)
    chain = made[-1].chain
    assert chain is not None and chain.steps[0].args == (0, pytest.approx(0.0515 * 0.0542))
    assert made[-1].attributes["factor"] == pytest.approx(0.0368)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("architecture", "sizes", "most", "share"),
    [("sm_90a", (2, 70), 1, 0.01), ("sm_90a", (1, 300), 1, 0.01), ("sm_80", (2, 70), 4, 0.2)],
)
def test_results(architecture: str, sizes: tuple[int, int], most: int, share: float) -> None:
    """By one launch, all of whose integers are exact but at ties; and by the parts.

    Between these scores and weights are multiples of their steps in 16 bits.
    """
    arrays = _operands(*sizes)
    (want,) = _region().reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(_region(), arrays, DType.F16, ARCHITECTURES[architecture])
    error = np.abs(got.astype(np.float64) - want)
    assert error.max() <= most and (error > 0).mean() < share
    assert len(np.unique(got)) > 100


def test_masks_are_computed_where_they_are_read() -> None:
    """From bytes, by a chain that nothing else needs then."""
    calls = parts(whole())
    named: dict[str, Any] = CALLS.of(calls[0]).named(calls[0])
    (mask,) = named["inputs"]
    line, bytes_of = View(mask.buffer, (256,), (1,)), View(Buffer("temp", 99), (256,), (1,))
    steps = Step("sub", (0, 0.0)), Step("mul", (1, 0.5))  # 0.0 is no operand
    own = Chain(("full",), steps, (2, 2), (DType.U8,))
    other = View(Buffer("temp", 98), (256,), (1,))
    maker = CALLS.listed("elementwise", [bytes_of, other, line], chain=own)
    w = GpuProgramWriter((), ())
    w.temps += [(DType.F32, 0)] * 100
    w.calls += [maker, *calls]
    fold_quantized_attentions(w)
    assert [c.op for c in w.calls] == [_OP] * 3
    (read,) = CALLS.of(w.calls[0]).named(w.calls[0])["inputs"]
    assert read == replace(mask, buffer=bytes_of.buffer)
    chain = w.calls[0].chain
    assert chain is not None and chain.operand_types == (DType.F32, DType.U8)
    rng = np.random.default_rng(5)
    sums, small = rng.normal(0, 60, 99), rng.integers(0, 9, 99).astype(np.uint8)
    masks = own.reference([small])[0]
    text = emit_kernel(w.calls[-1], variants_of(w.calls[-1])[0][0],
                       Target(CUDA, ARCHITECTURES["sm_90a"])).text  # fmt: skip
    assert "divided" not in text.partition("DEV void apply")[2].partition("}")[0]
    free = [replace(c, stores=()) for c in (chain, _SCORES)]
    assert np.array_equal(free[0].reference([sums, small]), free[1].reference([sums, masks]))
