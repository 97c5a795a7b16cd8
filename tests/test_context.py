"""Contexts: which kernel a target runs for a problem, by name, with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tracea_graph as tg
from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.hardware import profile_cpu
from tracea_graph.json_documents import to_json
from tracea_graph.kernels.cpu import kernel_catalog
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.core_measurement import assumed_figures
from tracea_graph.kernels.cpu.isa_levels import LEVELS, levels_of
from tracea_graph.kernels.cpu.machine_model import CpuDiagnostics
from tracea_graph.kernels.cpu.variants import VARIANTS
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS as GPU_CALLS
from tracea_graph.kernels.gpu.variants import VARIANTS as GPU_VARIANTS
from tracea_graph.kernels.operations import ALIASES
from tracea_graph.policy import KernelPlan
from tracea_graph.target_names import TARGETS
from tracea_graph.views.doctor import render_kernel_choice

HERE = levels_of(profile_cpu())
PRECISIONS = ("fp32", "BF16", "fp16", "int8", "int16", "bf16x2")
HOST_LOOPS = {kernel_catalog.host_loop(schema.op) for schema in CALLS.values()}
KNOWN = {kernel_catalog.variant_id(v) for v in VARIANTS} | HOST_LOOPS


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are modelled from the instruction set."""
    figures = assumed_figures(profile_cpu())
    monkeypatch.setattr(CpuDiagnostics, "measure", lambda *args, **more: figures)


def context(target: str = "host", level: str | None = None) -> tg.Context:
    return tg.Context(target, Environment(level=level, cache=Path("unused")))


def test_the_machine_answers_without_a_shape() -> None:
    found = context().plan_kernel("flash_attention_2", precision="FP32")
    assert found.op == "attention" and found.backend == "cpu" and found.target == "host"
    assert found.variant_id == f"f32_attention_24x256__{HERE[-1]}"
    assert found.shape == (1, 12, 128, 128, 64)
    assert found.shape_note == "no shape was given: 1x12x128x128x64 is assumed"
    assert found.us and found.gflops and found.precision_note == ""
    assert len(found.rejected) >= 2 and all(r.why for r in found.rejected)
    assert found.reasons and found.sizes["queries"] == 128


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_operation_names_a_variant_that_exists(precision: str) -> None:
    here = context()
    for op in here.operations:
        found = here.plan_kernel(op, precision=precision)
        assert found.variant_id in KNOWN, op
        assert {r.variant_id for r in found.rejected} <= KNOWN
        assert bool(found.precision_note) == (found.precision != found.wanted), op


def test_every_call_can_be_asked_for() -> None:
    """By an operation of some name."""
    for target, calls in (("host", CALLS), ("cuda:sm_90", GPU_CALLS)):
        known = context(target).policy().catalog.operations.values()
        assert {s.op for s in calls.values()} <= {op for o in known for op in o.calls}


def test_every_alias_leads_to_an_operation() -> None:
    known = context().operations
    assert set(ALIASES.values()) <= set(known) and ALIASES.keys().isdisjoint(known)


def test_precisions_fall_back_with_a_note() -> None:
    here = context()
    found = here.plan_kernel("gemm", precision="fp16")
    assert (found.wanted, found.precision) == ("f16", "f32")
    assert "nothing is computed in fp16" in found.precision_note
    found = here.plan_kernel("conv2d", precision="int8")
    assert found.wanted == "int8" and found.precision in ("int16", "f32")
    assert "no kernel of conv computes in int8" in found.precision_note
    assert here.plan_kernel("gemm", precision="int8").variant_id.startswith("i8_gemm_int8")
    found = here.plan_kernel("norm", precision="bf16")
    assert found.precision == "f32" and found.precision_note


def test_a_level_caps_what_runs() -> None:
    found = context("cpu:scalar").plan_kernel("gemm")
    assert found.level == "scalar" and found.variant_id == "f32_gemm_4x16__scalar"
    why = {r.level: r.why for r in found.rejected}
    assert all("above scalar" in w or "which this processor lacks" in w for w in why.values())
    assert context(level="scalar").plan_kernel("gemm").variant_id == found.variant_id
    order = [isa.name for isa in LEVELS]
    levels = [r.level for r in found.rejected]
    assert levels == sorted(levels, key=order.index, reverse=True)


def test_more_work_takes_longer() -> None:
    one, many = (context().plan_kernel("gemm", (m, 768, 768)).us or 0.0 for m in (1, 128))
    assert 0.0 < one < many < 128 * one


@pytest.mark.parametrize(
    ("op", "shape", "message"),
    [
        ("gemm", (1, 2), "gemm takes 3 sizes above 0, M,N,K, not 1,2"),
        ("gemm", (1, 2, 0), "takes 3 sizes above 0"),
        ("gem", None, "cpu has no kernels for 'gem'; did you mean gemm"),
        ("flash_attention_3", None, "did you mean flash_attention_2"),
        ("zzzz", None, "cpu has no kernels for 'zzzz'; there are arg_reduce"),
        ("low_rank_gemm", (8, 8, 8, 9), "rank 9 is not between 1 and 8"),
    ],
)
def test_what_cannot_be_answered_says_why(
    op: str, shape: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        context().plan_kernel(op, shape)


def test_names_may_be_written_as_one_likes() -> None:
    assert context().plan_kernel("Flash-Attention-2").op == "attention"


# ---- a target without its device ---------------------------------------------------------


@pytest.mark.parametrize("name", [t for t in TARGETS if t.startswith("cuda:")])
def test_gpus_answer_from_tables(name: str) -> None:
    there = context(name)
    known = {(v.dtype, v.op, v.tile) for v in GPU_VARIANTS}
    for op in there.operations:
        for precision in PRECISIONS:
            found = there.plan_kernel(op, precision=precision)
            kernel, _, architecture = found.variant_id.rpartition("__")
            assert architecture in ARCHITECTURES
            assert any(kernel == f"{d}_{o}_{t}" for d, o, t in known), found.variant_id
            assert found.backend == "cuda" and found.target == name


def test_gpus_say_what_a_variant_needs() -> None:
    found = context("cuda:sm_90").plan_kernel("flash_attention_2", precision="FP16")
    assert found.variant_id == "f16_attention_16x128__sm_90a" and found.us
    assert "keys of few heads" in found.reasons[-1]
    many = context("cuda:sm_90").plan_kernel("attention", (32, 12, 128, 128, 64), "FP16")
    assert many.variant_id == "f16_attention_64x128x1__sm_90a"
    assert "all scores of 64 queries" in many.reasons[-1]
    long = context("cuda:sm_90").plan_kernel("attention", (1, 12, 4096, 4096, 128), "BF16")
    assert long.variant_id == "bf16_attention_128x128x2__sm_90a"
    assert any("shared memory" in reason for reason in long.reasons)
    rest = {r.variant_id: r.why for r in long.rejected}
    assert rest["bf16_attention_64x32__sm_90a"] == "runs where the chosen one cannot"
    wide = context("cuda:sm_75").plan_kernel("gemm", (4096, 4096, 4096), "FP16")
    refused = {r.variant_id: r.why for r in wide.rejected}
    assert "a block of sm_75 has 64" in refused["f16_gemm_128x256x32x4__sm_75"]
    small = context("cuda:sm_90").plan_kernel("gemm", (64, 768, 768), "FP16")
    assert small.variant_id.startswith("f16_gemm_64x") and "few rows" in small.reasons[-1]
    small = context("cuda:sm_80").plan_kernel("gemm", (64, 768, 768), "FP16")
    assert small.variant_id == "f16_gemm_32x64x64x4__sm_80"
    assert "64 rows leave large tiles empty" in small.reasons[-1]
    exact = context("cuda:sm_90").plan_kernel("gemm", (64, 768, 768))
    assert exact.variant_id == "tf32x3_gemm_32x64x32x4__sm_90a", "sums of three products"
    old = context("cuda:sm_75").plan_kernel("gemm", precision="BF16")
    assert old.precision == "f16" and "no instructions" in old.precision_note


# ---- shown -------------------------------------------------------------------------------


def text_of(what: Any) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_the_doctor_shows_the_answer_in_80_columns() -> None:
    for target in ("host", "cuda:sm_90"):
        plan = context(target).plan_kernel("conv2d", precision="int8")
        shown = text_of(render_kernel_choice(plan))
        assert max(map(len, shown.splitlines())) <= 80
        assert plan.variant_id in shown and "note: no shape was given" in shown
        for other in plan.rejected:
            assert other.variant_id in shown


def test_an_answer_is_a_document() -> None:
    plan: KernelPlan = tg.plan_kernel("gemm", target="cpu:scalar")
    data = json.loads(to_json(plan))
    assert data["variant_id"] == plan.variant_id and data["schema_version"] == 1
    assert data["schedule"]["mc"] > 0
