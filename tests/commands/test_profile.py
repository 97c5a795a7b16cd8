"""Rows, bounds and families of a profile, and one taken for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from models.make import make
from tests.commands.samples import ROOFS, profile, result, row
from tracea_graph import api
from tracea_graph.commands import profile as profile_module
from tracea_graph.commands.bench import BenchOptions
from tracea_graph.commands.op_statistics import OpStatistics
from tracea_graph.commands.profile import CallTime
from tracea_graph.ir import Node
from tracea_graph.kernels.cpu.call_stats import CallStats, ViewAccess
from tracea_graph.options import Options
from tracea_graph.ttg import TileGraph
from tracea_graph.views.profile_record import ProfileRow, group_equal_nodes, notable_groups
from tracea_graph.views.profile_table import abridge_names, format_bytes, render_profile
from tracea_graph.views.roofline import profile_page

pytestmark = pytest.mark.usefixtures("highest_level")


def text(view: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [(50.0, 30.0, "compute"), (30.0, 50.0, "memory"), (24.0, 20.0, "overhead")],
)
def test_a_bound_explains_a_quarter_of_the_time(compute: float, memory: float, bound: str) -> None:
    assert row(compute_us=compute, memory_us=memory).bound == bound


def test_unknown_work_has_no_bound() -> None:
    assert row(flops=None, weights=None).bound == ""


def test_the_smallest_memory_that_holds_it_gives_the_bandwidth() -> None:
    assert [ROOFS.memory(size).name for size in (1e5, 3e6, 1e9)] == ["L2", "L3", "DRAM"]


def test_equal_nodes_are_a_family() -> None:
    found = group_equal_nodes([row(us=10.0), row(us=20.0), row(us=25.0, size="other")])
    assert [(f.us, len(f.rows)) for f in found] == [(30.0, 2), (25.0, 1)]
    assert found[0].total.flops == 2e7
    assert found[0].total.gflops == pytest.approx(2e7 / 30.0 / 1e3)


def test_calls_tell_what_a_program_of_unknown_sizes_does() -> None:
    views = (
        ViewAccess(0, (2, 8), 64.0),
        ViewAccess(1, (8, 4), 128.0),
        ViewAccess(None, (2, 4), 32.0),
    )
    once = CallTime(5.0, CallStats("gemm", 128.0, 8.0, views, "2×4×8"))
    again = CallTime(5.0, CallStats("norm", 0.0, 8.0, (views[0], views[2]), "2×4"))
    nodes = [Node("Relu", ("x",), ("y",), {})]
    graph = TileGraph.of_nodes(nodes, ["x"], ["y"], {}, {})
    work = profile_module._done_by((once, again), ("x", "w"), OpStatistics(graph, (), {}))
    assert (work.flops, work.weights, work.activations) == (128.0, 0.0, 192.0)
    assert work.unfused == 64 + 128 + 32 + 64 + 32


def test_what_multiplies_bf16_is_held_against_the_peak_of_bf16() -> None:
    roofs = replace(ROOFS, lower={"bf16": 400.0, "int16": 300.0})
    peaks = [roofs.peak(name) for name in ("f32", "bf16", "int16", "bf16x2")]
    assert peaks == [200.0, 400.0, 300.0, 200.0]
    met = roofs.met([row(calls=(row(product_type="bf16"), row(op="norm")))])
    assert met.peaks == {"fp32": 200.0, "bf16": 400.0}
    shown = text(render_profile(replace(profile(row()), roofs=met)))
    assert "limits (measured): 200 GFLOP/s fp32, 400 GFLOP/s bf16, L2 200 GB/s" in shown


def test_petty_families_share_a_line() -> None:
    made = profile(row(us=5000.0), row("Shape", us=2.0, size=""))
    named, rest = notable_groups(made)
    assert ([f.op for f in named], [r.op for r in rest]) == (["FusedGemm_ab"], ["Shape"])
    assert "the rest" in text(render_profile(made))


def test_the_table_says_what_a_run_spends() -> None:
    said = text(render_profile(profile(row(us=750.0), row("Softmax", us=250.0, size="9"))))
    assert "1.00 ms in 2 nodes, 75.0% of it in programs" in said
    assert "4 MB before (operator by operator), 2 MB after" in said
    assert "2 µs of profiling overhead were subtracted" in said


def test_markup_and_escapes_in_names_are_only_text() -> None:
    said = text(render_profile(profile(row("[red]\x1b[31mEvil", originals=("[b]x",))), 1))
    assert "[red]" in said
    assert "[b]x" in said
    assert "\x1b[31mEvil" not in said


def test_the_json_holds_what_follows_from_the_fields() -> None:
    data = json.loads(profile(row()).to_json())
    assert data["in_programs"] == 1.0
    assert (data["rows"][0]["bound"], data["rows"][0]["bytes"]) == ("compute", 1e6)


def test_shared_paths_are_written_once() -> None:
    assert abridge_names(("/a/b/X", "/a/b/Y", "/c/Z", "W")) == "/a/b/{X, Y}, /c/Z, W"


def test_bytes_have_units() -> None:
    assert [format_bytes(n) for n in (7, 2_500, 1.5e6, 2e9)] == ["7 B", "2.5 kB", "1.5 MB", "2 GB"]


@pytest.mark.compiler
def test_programs_are_known_by_their_original_nodes(tmp_path: Path) -> None:
    original = make("tiny-bert", tmp_path)
    api.optimize(original, Options(output=tmp_path / "out.onnx", keep="all", verify=False))
    sizes = {"batch": 1, "sequence": 64}
    options = BenchOptions(threads=(1,), shapes=(sizes,), pairs=5, seconds=300.0)
    taken = profile_module.profile(tmp_path / "out.onnx", options)
    programs = [r for r in taken.rows if r.kernel]
    assert len(programs) >= 2
    assert 0.0 < taken.in_programs <= 1.0
    assert all(r.flops and r.originals and r.rule for r in programs)
    assert all(
        r.calls and all(c.us > 0 and c.bytes and c.flops for c in r.calls) for r in programs
    )
    kernels = {c.op for r in programs for c in r.calls}
    assert {"gemm", "norm", "attention", "embedding"} <= kernels
    several = [r for r in programs if len(r.calls) > 1]
    assert several and all(sum(c.flops or 0 for c in r.calls) == pytest.approx(r.flops)
                           for r in several)  # fmt: skip
    assert any("/attention/self/Softmax" in name for r in programs for name in r.originals)
    attention = [c for r in programs for c in r.calls if c.op == "attention"]
    assert all(any("/attention/self/" in name for name in c.originals) for c in attention)
    products = [r for r in programs if "Gemm" in r.op]
    assert all(r.unfused and r.bytes and r.unfused > r.bytes for r in products)
    assert taken.us > 0 and taken.run_ms > 0


def test_calls_of_a_program_stand_below_it() -> None:
    calls = tuple(ProfileRow("", op, True, us, 1e6, 1e3, 1e3, compute_us=us, size=f"7×{us:g}")
                  for op, us in (("gemm", 70.0), ("norm", 20.0)))  # fmt: skip
    made = profile(row(us=100.0, calls=calls), row(us=100.0, calls=calls), row("Add", us=9.0))
    lines = text(render_profile(made)).splitlines()
    at = next(i for i, line in enumerate(lines) if "FusedGemm" in line)
    assert "gemm" in lines[at + 1] and "7×70" in lines[at + 1] and " 140 " in lines[at + 1]
    assert "norm" in lines[at + 2] and " 40 " in lines[at + 2] and "compute" in lines[at + 2]
    assert "7×20" in profile_page(made)
    (first, *_) = json.loads(made.to_json())["rows"]
    assert [c["op"] for c in first["calls"]] == ["gemm", "norm"]
    assert first["calls"][0]["bound"] == "compute"
    assert "gemm" in text(render_profile(made, 1)) and "Add" in text(render_profile(made, 1))


def test_a_single_call_has_no_line_of_its_own() -> None:
    made = profile(row(calls=(ProfileRow("", "gemm", True, 90.0, size="1×2"),)))
    assert "1×2" not in text(render_profile(made))


def test_a_profile_places_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a library ONNX Runtime inlines the body: no node is a program, all have times."""
    monkeypatch.setattr(profile_module, "roofline_limits", lambda doctor, threads: ROOFS)
    options = BenchOptions(threads=(1,), shapes=({"batch": 64},), pairs=3, seconds=300.0)
    taken = profile_module.profile(result(tmp_path), options)
    assert taken.binding == "batch=64"
    assert taken.in_programs == 0.0
    assert [r.us for r in taken.rows] == sorted((r.us for r in taken.rows), reverse=True)
    assert {"Neg"} <= {r.op for r in taken.rows if r.bytes}
    assert taken.run_ms > 0
