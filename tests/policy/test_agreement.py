"""The policy, ``plan_kernel`` and the choice of the generated library name one variant.

The library's choice is asked of its own code: ``choose_isa`` and ``choose_gemm_schedule``, and the
functions that ``table.cpp`` lists for the chosen level.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path

import pytest

import tracea_graph as tg
from models.make import make
from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu import emitter, kernel_catalog
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.core_measurement import assumed_figures
from tracea_graph.kernels.cpu.exported_functions import ARM_KERNELS, KERNELS
from tracea_graph.kernels.cpu.isa_levels import ARM, family_of
from tracea_graph.kernels.cpu.library_table import table_source
from tracea_graph.kernels.cpu.machine_model import CpuDiagnostics
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES
from tracea_graph.kernels.cpu.variants import VARIANTS, KernelVariant, find_variant
from tracea_graph.kernels.gpu.kernel_selection import kernels_of, variants_of
from tracea_graph.kernels.operations import KernelOperation
from tracea_graph.kernels.schema import CallSchema
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.passes import WEIGHT_DEPENDENT
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.policy import CostModel, Machine, OperatorTopology
from tracea_graph.target import target_of
from tracea_graph.toolchain import find_compiler

RUNTIME = Path(emitter.__file__).resolve().parent
SKIPPED = (*WEIGHT_DEPENDENT, "unstructured-sparse-gemm")
PROBE = """
#include "runtime/isa.h"
#include "runtime/gemm.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

static const tracea::GemmSchedule kTable[] = {%s};

int main(int count, char** words) {
  tracea_isa_table levels[8] = {};
  int32_t known = 0;
  for (char* at = strtok(words[1], ","); at; at = strtok(nullptr, ",")) levels[known++].isa = at;
  tracea_library library = {};
  library.isas = known;
  library.isa = levels;
  tracea::Error error;
  const tracea_isa_table* chosen = tracea::choose_isa(library, error);
  puts(chosen ? chosen->isa : "none");
  tracea::Call call = {};
  call.gemm_schedules = kTable;
  call.schedule_count = sizeof kTable / sizeof *kTable;
  for (int i = 2; i < count; ++i)
    printf("%%d\\n", tracea::choose_gemm_schedule(call, atoll(words[i])).max_rows);
}
"""
ROWS = (1, 4, 5, 32, 33, 128, 512, 513, 100_000)


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = assumed_figures(profile_cpu())
    monkeypatch.setattr(CpuDiagnostics, "measure", lambda *args, **more: figures)
    monkeypatch.delenv("TRACEA_ISA", raising=False)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    table = ", ".join(f"{{{', '.join(map(str, astuple(s)))}}}" for s in GEMM_SCHEDULES)
    (folder / "probe.cpp").write_text(PROBE % table)
    flags = (*emitter.COMMON_FLAGS, f"-I{RUNTIME}", f"-I{RUNTIME.parent}", "-O0")
    find_compiler().run((*flags, "probe.cpp", "-o", "probe"), folder)
    return folder / "probe"


def chosen(probe: Path, levels: Sequence[str], cap: str = "") -> tuple[str, list[int]]:
    """The level that a library with these levels runs, and the schedules that rows lead to."""
    done = subprocess.run(
        [str(probe), ",".join(levels), *map(str, ROWS)],
        capture_output=True, text=True, check=True, env={**os.environ, "TRACEA_ISA": cap},
    )  # fmt: skip
    level, *limits = done.stdout.split()
    return level, [int(limit) for limit in limits]


@cache
def assembled(name: str, target: str, precision: str, folder: Path) -> Assembly:
    model = load(make(name, folder, hollow=True))
    skip = SKIPPED if target == "host" else ()
    options = Options(keep="all", target=target, precision=precision, max_error=1.0, skip=skip)
    cost = CostModel(Machine(), {})
    planner = Planner(model.graph, options, {}, target_of(target, precision), cost=cost)
    return planner.assembled(planner.plan)[0]


def row_of(assembly: Assembly, level: str, levels: Sequence[str]) -> str:
    """What ``table.cpp`` lists for one level."""
    text = table_source(
        "tracea.0123456789", assembly.contents, levels,
    )  # fmt: skip
    start = text.index(f'    {{"{level}", ')
    chains = "".join(line for line in text.splitlines() if f"chains_{level}[]" in line)
    return text[start : text.index("}", start)] + chains


@pytest.mark.compiler
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["tiny-bert", "tagger", "mobilenetv2", "unet"])
def test_three_answers_are_one(
    name: str, precision: str, probe: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    resolved = target_of("host", precision)
    if precision != resolved.backend.resolve_precision(precision, resolved.levels)[0]:
        precision, resolved = "fp32", target_of("host", "fp32")
    folder = tmp_path_factory.getbasetemp()
    assembly = assembled(name, "host", precision, folder)
    level, limits = chosen(probe, resolved.levels)
    assert level == resolved.levels[-1]
    row = row_of(assembly, level, resolved.levels)
    policy = tg.Context().policy(precision)
    known = {kernel_catalog.variant_id(v): v for v in VARIANTS}
    assert assembly.placed
    for item in assembly.placed:
        for call, one in zip(item.program.calls, item.decisions, strict=True):
            decision = one.decision
            asked = policy.decide(decision.topology)
            assert asked.variant_id == decision.variant_id
            named = _operation(policy.catalog.operations, call.op)
            plan = policy.plan_kernel(named, None, decision.topology.dtype)
            assert plan.variant_id == decision.variant_id, call.name
            if call.op == "gemm":
                assert call.schedules == decision.schedules
                by_rows = dict(zip(ROWS, limits, strict=True))
                for rows, limit in by_rows.items():
                    own = policy.decide(OperatorTopology("gemm", rows, 64, 64, dtype=call.dtype))
                    assert own.schedule is not None and own.schedule.limit == limit
            if decision.variant_id.startswith("host_"):
                assert not CALLS.of(call).needs
            elif call.op == "elementwise":
                assert f"__{decision.winner.level}" in row or not call.chain
            else:
                variant = known[decision.variant_id]
                functions = KERNELS[variant.kernel]
                assert all(variant.symbol(f.name) in row for f in functions), call.name


def _operation(operations: Mapping[str, KernelOperation], op: str) -> str:
    """The operation that calls of an op compute."""
    return next(o.name for o in operations.values() if op in o.calls)


@pytest.mark.compiler
def test_a_cap_is_followed_by_all(probe: Path) -> None:
    levels = target_of("host", "fp32").levels
    for cap in levels:
        level, _ = chosen(probe, levels, cap)
        plan = tg.Context("host", Environment(level=cap)).plan_kernel("gemm")
        assert level == cap and plan.variant_id == kernel_catalog.variant_id(
            find_variant("gemm", cap)
        )


@pytest.mark.compiler
def test_calls_of_every_kind_agree(probe: Path) -> None:
    """Also those that no model of the zoo leads to, in the precisions of this machine."""
    for precision in ("fp32", "bf16", "int16", "bf16x2"):
        target = target_of("host", precision)
        level, _ = chosen(probe, target.levels)
        policy = tg.Context().policy(precision)
        here = family_of(profile_cpu()) is ARM
        for schema in CALLS.values():
            if not (here or ARM_KERNELS.keys().isdisjoint(schema.needs)):
                continue
            found = policy.decide(OperatorTopology(schema.op, 8, 16, 4, dtype=schema.dtype))
            kernel = found.variant_id.removeprefix("host_")
            if kernel == schema.op and not schema.needs and schema.op != "elementwise":
                continue
            runs = {kernel_catalog.variant_id(v) for v in _run(schema, level)}
            assert found.variant_id in runs, schema.name


def _run(schema: CallSchema, level: str) -> list[KernelVariant]:
    """The variants that the library calls for a schema's kernels on a level."""
    return [find_variant(kernel, level) for kernel in schema.needs or ("chain",)]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("tiny-bert", "fp32"), ("tiny-bert", "fp16"), ("mobilenetv2", "fp16"),
        pytest.param("mobilenetv2", "fp32", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_gpu_plans_hold_what_the_policy_decided(
    name: str, precision: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    assembly = assembled(name, "cuda:sm_90", precision, folder)
    policy = tg.Context("cuda:sm_90").policy(precision)
    pairs = [
        (call, one.decision)
        for item in assembly.placed
        for call, one in zip(item.program.calls, item.decisions, strict=True)
    ]
    assert len(pairs) > 10
    for call, decision in pairs:
        tiles = decision.topology.tiles  # of the kernels that a plan lists, where they apply
        assert tiles[-1] == variants_of(call)[-1][0].tile and tiles[-1] in kernels_of(call)[-1]
        able = {variant.tile: variant.op for variant, _ in reversed(variants_of(call))}
        assert set(tiles) <= {*able}
        name = f"{call.dtype}_{able[tiles[0]]}_{tiles[0]}__sm_90a"
        assert decision.variant_id == name, call.name
        plan = policy.plan_kernel(
            _operation(policy.catalog.operations, call.op), None, decision.topology.dtype
        )
        known = {decision.variant_id, *(c.id for c in decision.others)}
        own = {one for one in known if f"_{call.op}_" in one}  # others are those of its parts
        assert {plan.variant_id, *(r.variant_id for r in plan.rejected)} == own


def test_a_level_that_no_variant_has_is_an_error() -> None:
    policy = target_of("host", "fp32").policy()
    with pytest.raises((KeyError, UsageError)):
        policy.decide(OperatorTopology("zzzz", 1, 1, 1))
