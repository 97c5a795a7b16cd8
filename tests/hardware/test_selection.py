"""Which variant wins, which do not qualify, and what is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from processors import flags_of
from rich.console import Console

from tracea_graph.errors import UsageError
from tracea_graph.hardware import CpuProfile, Decision
from tracea_graph.hardware.measurements import Measurements, Peak
from tracea_graph.kernels.cpu.levels import ISAS
from tracea_graph.kernels.cpu.measure import assumed
from tracea_graph.kernels.cpu.selection import OPS, plan_kernel
from tracea_graph.kernels.cpu.variants import VARIANTS, find
from tracea_graph.views.doctor import decision_json, render_decision

TWIN = replace(find("gemm", "avx512"), template="twin.cpp.in")
WIDE = [v for v in VARIANTS if v.isa == "avx512"]
LEVELS = tuple(isa.name for isa in ISAS)
DOTS = ("avx512_bf16", "avx512_vnni")
SHAPES = {
    "gemm": (128, 768, 768), "attention": (1, 12, 128, 128, 64), "norm": (128, 768),
    "gather": (128, 768), "chain": (128, 768), "reduce": (128, 768), "softmax": (128, 768),
    "conv2d": (1, 64, 56, 56, 64, 3),
}  # fmt: skip


def machine(*isas: str) -> tuple[CpuProfile, Measurements]:
    cpu = CpuProfile("Test CPU", flags_of(*isas), 4, 4, 32 << 10, 1 << 20, 16 << 20)
    return cpu, assumed(cpu)


def decide(op: str = "gemm", isas: tuple[str, ...] = LEVELS, **options: Any) -> Decision:
    shape = options.pop("shape", SHAPES[op])
    return plan_kernel(op, shape, options.pop("precision", "f32"), *machine(*isas), **options)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_highest_level_of_the_machine_wins(op: str, count: int) -> None:
    decision = decide(op, LEVELS[:count])
    assert decision.winner.level == LEVELS[count - 1]
    own = [
        c for c in decision.others if c.level in LEVELS and not c.id.startswith(("bf16", "i16"))
    ]
    reasons = [c.why for c in own if c.us is None]
    assert len(reasons) == 3 - count
    assert all("this processor lacks" in why for why in reasons)


def test_every_operation_has_its_sizes() -> None:
    kernels = {op.kernel or name for name, op in OPS.items()}
    assert kernels <= {v.op for v in VARIANTS}
    assert set(SHAPES) == set(OPS)


def test_slower_variants_come_in_order_of_time() -> None:
    times = [c.us for c in (decide().winner, *decide().others) if c.us is not None]
    assert len(times) == 3
    assert times == sorted(times)


@pytest.mark.parametrize("precision", ["BF16", "fp16", "bf16", "f16"])
def test_precision_falls_back_with_a_reason(precision: str) -> None:
    decision = decide(precision=precision)
    assert decision.precision == "f32"
    known = decision.wanted == "bf16"
    reason = "slower than float32" if known else f"no variant of gemm has {decision.wanted}"
    assert reason in decision.precision_note


def with_dots(*peaks: Peak, extras: tuple[str, ...] = DOTS) -> tuple[CpuProfile, Measurements]:
    """A machine that multiplies pairs of 16 bits."""
    cpu, figures = machine(*LEVELS)
    return replace(cpu, flags=cpu.flags.union(extras)), replace(
        figures, peaks=(*figures.peaks, *peaks)
    )


@pytest.mark.parametrize(
    ("op", "precision", "dtype", "kernel"),
    [
        ("gemm", "BF16", "bf16", "bf16_gemm_bf16_8x48__avx512bf16"),
        ("gemm", "INT16", "i16", "i16_gemm_int16_8x48__avx512bf16"),
        ("gemm", "i16", "i16", "i16_gemm_int16_8x48__avx512bf16"),
        ("conv2d", "bf16", "bf16", "bf16_conv_bf16_14x32__avx512bf16"),
        ("flash_attention_2", "bf16", "bf16", "bf16_attention_bf16_24x256__avx512bf16"),
    ],
)
def test_a_precision_that_exists_is_used(op: str, precision: str, dtype: str, kernel: str) -> None:
    known = with_dots(Peak("bf16", "avx512_bf16", 900.0), Peak("i16", "avx512_vnni", 900.0))
    shape = SHAPES[{"flash_attention_2": "attention"}.get(op, op)]
    decision = plan_kernel(op, shape, precision, *known)
    assert (decision.precision, decision.precision_note) == (dtype, "")
    assert decision.variant == kernel
    assert f"computes in f32, not {dtype}" in {c.why for c in decision.others}


def test_integers_fall_back_where_nothing_multiplies_them_or_an_operation_has_none() -> None:
    decision = decide(precision="int16")
    assert decision.precision == "f32" and "has no vpdpwssd" in decision.precision_note
    decision = plan_kernel("conv2d", SHAPES["conv2d"], "INT16", *with_dots())
    assert decision.precision == "f32"
    assert decision.precision_note == "f32 is used: no variant of conv2d has i16"


def test_a_level_is_rated_by_its_own_instructions() -> None:
    """Not by those of a level above it: matrix tiles say nothing about vectors."""
    peaks = Peak("bf16", "avx512_bf16", 500.0), Peak("bf16", "amx_bf16", 4000.0)
    known = with_dots(*peaks, extras=(*DOTS, "amx_tile", "amx_bf16"))
    decision = plan_kernel("gemm", SHAPES["gemm"], "bf16", *known)
    assert decision.winner.level == "amxbf16"
    vectors = next(c for c in decision.others if c.level == "avx512bf16")
    assert vectors.us is not None and vectors.us > 2 * (decision.winner.us or 0.0)


def test_a_precision_this_machine_lacks_falls_back() -> None:
    decision = decide(precision="bf16", isas=LEVELS[:2])
    assert (decision.precision, decision.winner.level) == ("f32", "avx2")
    assert "this processor lacks" in decision.precision_note
    assert decision.precision_note.endswith("no variant of gemm has f16")


def test_bf16_that_was_not_measured_is_not_taken_for_missing() -> None:
    decision = plan_kernel("gemm", SHAPES["gemm"], "bf16", *with_dots())
    assert (decision.precision, decision.winner.level) == ("bf16", "avx512bf16")


def test_a_cap_rules_out_higher_levels() -> None:
    decision = decide(cap="avx2")
    assert decision.winner.level == "avx2"
    assert "TRACEA_ISA=avx2 rules it out" in {c.why for c in decision.others}


def test_more_work_takes_longer_and_low_tiles_are_slower_per_row() -> None:
    one, many = (decide(shape=(m, 768, 768)).winner.us or 0.0 for m in (1, 128))
    assert one < many < 128 * one


@pytest.mark.parametrize(
    ("op", "options", "message"),
    [
        ("gemm", {"shape": (1, 2)}, "takes 3 sizes above 0, M,N,K"),
        ("gemm", {"shape": (1, 2, 0)}, "takes 3 sizes above 0"),
        ("gemm", {"precision": "i8"}, "no variant of gemm has i8"),
        ("gemm", {"isas": LEVELS[:1], "variants": WIDE}, "avx512vl, which this processor lacks"),
        ("attention", {"shape": (1, 1, 1, 1, 300)}, "heads are at most 256 wide"),
        ("gemm", {"variants": (*VARIANTS, TWIN)}, "equally good"),
    ],
)
def test_what_cannot_be_decided_says_why(op: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decide(op, **options)


def test_an_unknown_operation_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no kernels for 'fft'; there are some for gemm"):
        plan_kernel("fft", (1,), "f32", *machine(*LEVELS))


def test_other_words_mean_the_same_and_every_rejection_has_its_reason() -> None:
    shape = SHAPES["attention"]
    decision = plan_kernel("flash_attention_2", shape, "BF16", *machine(*LEVELS))
    assert decision.op == "attention" and decision.variant == decision.winner.id
    assert (decision.backend, decision.precision) == ("cpu", "f32")
    assert decision.precision_note and decision.score > 0
    assert len(decision.rejected) == len(decision.others)
    assert all(why for _, why in decision.rejected)
    assert "slower: " in dict(decision.rejected)[decision.others[0].id]
    faster = plan_kernel("flash_attention_2", (1, 12, 512, 512, 64), "f32", *machine(*LEVELS))
    assert faster.score == pytest.approx(decision.score, rel=0.2)


def test_a_decision_is_shown_with_every_variant() -> None:
    decision = decide(precision="bf16", isas=LEVELS[:2])
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render_decision(decision), soft_wrap=True)
    for part in (decision.winner.id, "wins", "avx512f", decision.precision_note):
        assert part in capture.get()
    assert decision.winner.id in decision_json(decision)
