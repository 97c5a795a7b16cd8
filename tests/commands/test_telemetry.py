"""Metrics, tables and timelines of a profile that runs in production left."""

from __future__ import annotations

import csv
import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import child, padded_text, transformer
from tracea_graph import api
from tracea_graph.cli.main import main
from tracea_graph.commands.production_telemetry import (
    call_rows,
    call_work_by_node,
    perfetto_trace,
    prometheus_text,
    read_runs,
)
from tracea_graph.errors import UsageError
from tracea_graph.kernels.schema import PHASES
from tracea_graph.options import Options
from tracea_graph.session_policy import read_policy
from tracea_graph.target import read_environment
from tracea_graph.toolchain import find_compiler

pytestmark = pytest.mark.usefixtures("highest_level")

PROFILE = (
    "block 0\t4,8\t1000,3000\t5000,77\n"
    "block 0\t4,8\t2000,3000\t15000,77\n"
    "block 0\t1,8\t500,600\t25000,78\n"
    "block 0\t4,8\t1000,30"  # still being written
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "runs.txt"
    path.write_text(PROFILE)
    return path


def test_calls_are_summarized_by_size(profile: Path) -> None:
    rows = call_rows(read_runs(profile), {})
    assert [(r.call, r.runs, r.mean_us) for r in rows] == [
        (1, 2, 3.0), (0, 2, 1.5), (1, 1, 0.6), (0, 1, 0.5)
    ]  # fmt: skip
    assert (rows[1].p50_us, rows[1].p95_us, rows[1].p99_us) == (1.0, 2.0, 2.0)
    assert rows[0].gflops is None


def test_metrics_are_prometheus_text(profile: Path) -> None:
    lines = prometheus_text(read_runs(profile), {}).splitlines()
    assert 'tracea_node_seconds_bucket{node="block 0",le="1e-06"} 0' in lines
    assert 'tracea_node_seconds_bucket{node="block 0",le="2.5e-06"} 1' in lines
    assert 'tracea_node_seconds_bucket{node="block 0",le="+Inf"} 3' in lines
    assert 'tracea_node_seconds_count{node="block 0"} 3' in lines
    assert 'tracea_node_seconds_sum{node="block 0"} 1.01e-05' in lines
    assert 'tracea_kernel_seconds_total{kernel="unknown",phase="host"} 1.01e-05' in lines


def test_the_timeline_begins_at_the_first_run(profile: Path) -> None:
    events = json.loads(perfetto_trace(read_runs(profile), {}))["traceEvents"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events[:4]] == [
        ("block 0", 0.0, 4.0, 77), ("call 0", 0.0, 1.0, 77), ("call 1", 1.0, 3.0, 77),
        ("block 0", 10.0, 5.0, 77),
    ]  # fmt: skip
    assert all(e["ph"] == "X" for e in events)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no profile\n")
    with pytest.raises(UsageError, match="is not a profile of TRACEA_PROFILE"):
        read_runs(tmp_path / "x")
    with pytest.raises(UsageError, match="cannot be read"):
        read_runs(tmp_path / "none")


RUN = """
import sys, numpy, onnxruntime
import tracea_graph as tg
session = tg.session(sys.argv[1])
feeds = dict(numpy.load(sys.argv[2]))
for _ in range(5):
    session.run(None, feeds)
"""


@pytest.mark.compiler
def test_a_result_that_runs_is_profiled_call_by_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = api.optimize(transformer(tmp_path), Options(keep="all", verify=False))
    np.savez(tmp_path / "feeds.npz", **padded_text())
    profile = tmp_path / "runs.txt"
    monkeypatch.setenv("TRACEA_PROFILE", str(profile))
    child(RUN, report.output, tmp_path / "feeds.npz")
    runs = read_runs(profile)
    works = call_work_by_node(Path(report.output), runs)
    assert works
    rows = call_rows(runs, works)
    assert {row.phase for row in rows} <= {*PHASES}
    assert any(row.phase == "mma" and row.gflops and row.size for row in rows)
    files = (
        "--csv",
        tmp_path / "a.csv",
        "--jsonl",
        tmp_path / "a.jsonl",
        "--trace",
        tmp_path / "t",
    )
    assert main(["metrics", str(profile), str(report.output), *map(str, files)]) == 0
    assert 'kernel="attention",phase="mma"' in capsys.readouterr().out
    table = list(csv.DictReader((tmp_path / "a.csv").open()))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["kernel"] for row in table] == [row["kernel"] for row in lines]
    assert all(row["runs"] == 5 for row in lines)
    events = json.loads((tmp_path / "t").read_text())["traceEvents"]
    assert {"node", "mma"} <= {event["cat"] for event in events}


OBSERVED = """
import gc, sys, numpy
import tracea_graph as tg
from tracea_graph.commands.production_telemetry import RunMetrics
from tracea_graph.native_library import NodeRun

runs, metrics = [], RunMetrics()

def on_run(run):
    runs.append(run)
    metrics(run)

session = tg.session(sys.argv[1], on_run=on_run, policy=sys.argv[3])
feeds = dict(numpy.load(sys.argv[2]))
for _ in range(3):
    session.run(None, feeds)
assert session.get_session_options().intra_op_num_threads == 2
del session
gc.collect()
tg.session(sys.argv[1]).run(None, feeds)
assert all(isinstance(run, NodeRun) and run.calls and run.node for run in runs)
nodes = {run.node for run in runs}
assert len(runs) == 3 * len(nodes), runs
text = metrics.text()
assert all(f'tracea_node_seconds_count{{node="{node}"}} 3' in text for node in nodes), text
assert any(run.arena > 0 for run in runs)
"""

NVTX = """
#include <stdio.h>
int nvtxRangePushA(const char* name) { return printf("push %s\\n", name); }
int nvtxRangePop(void) { return puts("pop"); }
"""


PROFILER = """
#include <stdint.h>
#include <stdio.h>

typedef void (*Function)(void);
typedef struct {
  size_t struct_size;
  int (*get_module_function_table)(int module, Function*** table, unsigned* size);
} Callbacks;
enum { CALLBACKS = 1, CORE = 1, RANGE_PUSH_A = 9, RANGE_POP = 11 };

static int push(const char* name) { return printf("push %s\\n", name); }
static int pop(void) { return puts("pop"); }

int InitializeInjectionNvtx2(const void* (*tables)(uint32_t)) {
  const Callbacks* callbacks = (const Callbacks*)tables(CALLBACKS);
  Function** table = 0;
  unsigned size = 0;
  if (!callbacks || !callbacks->get_module_function_table(CORE, &table, &size)) return 0;
  if (size <= RANGE_POP) return 0;
  *table[RANGE_PUSH_A] = (Function)push;
  *table[RANGE_POP] = (Function)pop;
  return 1;
}
"""
"""What a profiler injects into NVTX (``NVTX_INJECTION64_PATH``): it prints ranges."""


def nvtx_library() -> Path:
    """Return the library of NVIDIA's wheel; skips where it is not installed."""
    try:
        found = metadata.files("nvidia-nvtx") or []
    except metadata.PackageNotFoundError:
        found = []
    for file in found:
        if file.name.startswith("libnvtx3interop.so"):
            return Path(str(file.locate()))
    pytest.skip("NVIDIA's NVTX is not installed (pip install nvidia-nvtx)")


@pytest.mark.compiler
def test_a_profiler_sees_ranges_through_nvidias_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = nvtx_library()
    (tmp_path / "profiler.c").write_text(PROFILER)
    compiler = find_compiler(read_environment())
    shared = ("-shared", "-fPIC", "-x", "c", "profiler.c", "-o", "profiler.so")
    compiler.run(shared, tmp_path)
    report = api.optimize(transformer(tmp_path), Options(keep="all", verify=False))
    np.savez(tmp_path / "feeds.npz", **padded_text())
    monkeypatch.setenv("TRACEA_NVTX", str(library))
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(tmp_path / "profiler.so"))
    shown = child(RUN, report.output, tmp_path / "feeds.npz").splitlines()
    assert shown.count("pop") == sum(line.startswith("push ") for line in shown) > 10
    assert "push mma: attention" in shown and "push reduce: norm" in shown
    monkeypatch.setenv("TRACEA_NVTX", "1")  # by its name, as the loader finds it
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    assert child(RUN, report.output, tmp_path / "feeds.npz").splitlines() == shown


@pytest.mark.compiler
def test_a_session_tells_of_its_runs_and_profilers_see_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = api.optimize(transformer(tmp_path), Options(keep="all", verify=False))
    np.savez(tmp_path / "feeds.npz", **padded_text())
    policy = tmp_path / "policy.yaml"
    policy.write_text("runtime: {threads: 2, allocator: plain, profile: runs.txt, timeout: 60s}\n")
    child(OBSERVED, report.output, tmp_path / "feeds.npz", policy)
    runs = read_runs(tmp_path / "runs.txt")
    assert len(runs) == 4 * len({run.node for run in runs})
    assert max(run.arena for run in runs) > 0

    (tmp_path / "nvtx.c").write_text(NVTX)
    library = tmp_path / "libnvtx.so"
    compiler = find_compiler(read_environment())
    compiler.run(("-shared", "-fPIC", "-x", "c", "nvtx.c", "-o", library.name), tmp_path)
    monkeypatch.setenv("TRACEA_NVTX", str(library))
    shown = child(RUN, report.output, tmp_path / "feeds.npz").splitlines()
    assert shown.count("pop") == sum(line.startswith("push ") for line in shown) > 10
    assert "push mma: attention" in shown
    assert f"push {runs[0].node}" in shown
    monkeypatch.setenv("TRACEA_NVTX", "1")  # no library of that name need be there
    child(RUN, report.output, tmp_path / "feeds.npz")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("runtime: {thread: 2}", "did you mean threads?"),
        ("runtime: {threads: 0}", "is not a number above 0"),
        ("runtime: {allocator: jemalloc}", "must be arena or plain or guard"),
        ("runtime: {timeout: 0}", "must be above 0"),
        ("runtime: [threads]", "is not a mapping"),
    ],
)
def test_policies_that_make_no_sense_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(UsageError, match=reason.replace("?", r"\?")):
        read_policy(tmp_path / "policy.yaml")


def test_an_earlier_profile_without_arenas_is_read(profile: Path) -> None:
    assert {run.arena for run in read_runs(profile)} == {0}
