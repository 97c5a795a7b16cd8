"""``TRACEA_PROFILE``: a line per run with each call's time, and nothing when it is not set."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.runtime.cases import CHAINS, gemm
from tests.runtime.conftest import ISAS, kernels_for
from tests.runtime.conv_calls import conv, depthwise, stem
from tests.runtime.linked_images import linked_images
from tests.runtime.sparse_cases import sparse_cases
from tests.runtime.support import Case, model, run_worker, single, spec
from tests.runtime.task_cases import in_tasks
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import GraphError
from tracea_graph.ir import Expr
from tracea_graph.kernels.cpu.call_stats import call_stats
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.cpu.schedule import ConvSchedule, GemmSchedule, TaskSchedule
from tracea_graph.kernels.program import Buffer, LibraryContents, View
from tracea_graph.toolchain import Library

CASE = "gemm_then_norm"


def placed(case: Case, domain: str, folder: Path) -> dict[str, object]:
    made = model(case.program, domain)
    made.graph.node[0].name = "a node\twith a tab"
    onnx.save(made, folder / "model.onnx")
    np.savez(folder / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    return {"task": "run", "jobs": [str(folder)]}


def test_every_call_is_timed(
    cases: dict[str, Case], library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, trace = cases[CASE], tmp_path / "trace"
    job = {**placed(case, library.domain, tmp_path), "library": str(library.path)}
    assert run_worker(job) == [None] and not trace.exists()
    monkeypatch.setenv("TRACEA_PROFILE", str(trace))
    assert run_worker({**job, "jobs": [str(tmp_path)] * 3}) == [None] * 3
    with np.load(tmp_path / "outputs.npz") as found:
        assert np.allclose(found["y0"], case.expected[0], atol=1e-5)
    lines = trace.read_text().splitlines()
    assert len(lines) == 3
    for line in lines:
        name, symbols, times, when = line.split("\t")
        start, thread, arena = map(int, when.split(","))
        assert 0 < start < 10**18 and thread > 0 and arena >= 0
        assert name == "a node?with a tab"
        assert len(list(map(int, filter(None, symbols.split(","))))) == len(case.program.symbols)
        taken = list(map(int, times.split(",")))
        assert len(taken) == len(case.program.calls) == 2 and all(100 < t < 10**13 for t in taken)


def test_every_task_is_timed(
    cases: dict[str, Case], library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, timeline = cases[CASE], tmp_path / "timeline"
    job = {**placed(case, library.domain, tmp_path), "library": str(library.path)}
    monkeypatch.setenv("TRACEA_TIMELINE", str(timeline))
    assert run_worker({**job, "jobs": [str(tmp_path)] * 2}) == [None] * 2
    with np.load(tmp_path / "outputs.npz") as found:
        assert np.allclose(found["y0"], case.expected[0], atol=1e-5)
    lines = timeline.read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        _, symbols, when, tasks = line.split("\t")
        begin, end = map(int, when.split(","))
        assert len(list(filter(None, symbols.split(",")))) == len(case.program.symbols)
        numbers = list(map(int, tasks.split(",")))
        rows = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
        assert {call for call, *_ in rows} == set(range(len(case.program.calls)))
        assert all(0 <= b <= e <= end - begin for *_, b, e in rows)


def test_tasks_of_several_stages_are_timed_and_watched(tmp_path: Path) -> None:
    """A linked stage of a Winograd convolution may run after the loop that hands it out."""
    case, timeline = linked_images((14, 14), 256, 256), tmp_path / "timeline"
    contents = LibraryContents([case.type], kernels_for([case]), CHAINS)
    library = build_library(contents, ISAS[-1:], tmp_path / "one.so", quick=True)
    path, env = tmp_path / "model.onnx", {"TRACEA_PROCESSORS": "8", "TRACEA_TIMEOUT": "100"}
    onnx.save(model(case.program, library.domain), path)
    feeds = {f"x{i}": x for i, x in enumerate(case.feeds)}
    with Worker(env={**env, "TRACEA_TIMELINE": str(timeline)}) as worker:
        worker.open("model", path, library.path, threads=8)
        answers = [worker.run("model", feeds) for _ in range(60)]
    for answer in answers:
        (y,) = answer.values()
        assert np.allclose(y, case.expected[0], atol=1e-3)
    lines = timeline.read_text().splitlines()
    calls = [set(map(int, line.rsplit("\t", 1)[1].split(",")[::4])) for line in lines]
    assert calls == [set(range(len(case.program.calls)))] * len(answers)


def test_a_trace_that_cannot_be_written_is_refused(
    cases: dict[str, Case], library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**placed(cases[CASE], library.domain, tmp_path), "library": str(library.path)}
    monkeypatch.setenv("TRACEA_PROFILE", str(tmp_path / "no" / "trace"))
    (said,) = run_worker(job)
    assert "TRACEA_PROFILE names" in said and "cannot be written" in said


@pytest.mark.parametrize("name", [CASE, "attention_added", "embedding_int64_2x5"])
def test_the_work_of_a_plan_is_that_of_its_program(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    sizes = [case.feeds[i].shape[axis] for i, axis in case.program.symbols.values()]
    found = call_stats(encode(case.program), sizes)
    assert [c.kernel for c in found] == [c.name for c in case.program.calls]
    assert all(c.bytes > 0 and c.results > 0 and c.size for c in found)
    read = {v.input for c in found for v in c.views if v.input is not None}
    assert read == set(range(len(case.feeds)))


def test_work_of_a_product(cases: dict[str, Case]) -> None:
    """x[21,16] · w[16,48] with its weight in panels, then a norm over the product in scratch."""
    case = cases[CASE]
    product, norm = call_stats(encode(case.program), [21][: len(case.program.symbols)])
    assert product.products == 2 * 21 * 48 * 16 and product.size == "21×48×16"
    assert norm.products == 0 and norm.results == 21 * 48
    assert 4 * (21 * 16 + 16 * 48 + 21 * 48) <= product.bytes <= 4 * (21 * 64 + 16 * 48 + 49 * 48)


@pytest.mark.parametrize(
    ("case", "size"),
    [
        (conv(33, 40, (9, 15), batch=2), "270×40×33"),
        (conv(33, 40, (9, 15), (3, 3), pad=(1, 1, 1, 1), halo=(1, 1, 1, 1)), "135×40×297"),
        (conv(64, 64, (5, 5), (3, 3), pad=(1, 1, 1, 1), groups=4), "25×64×144"),
        (conv(24, 33, (8, 8), (3, 3), pad=(1, 1, 1, 1), m=2), "64×33×216"),
        (stem(3, 24, (9, 9), (3, 3)), "49×24×27"),
        (depthwise(24, (9, 9), (3, 3)), "24·49×1×9"),
    ],
)
def test_work_of_convolutions_counts_channels_not_whole_blocks(case: Case, size: str) -> None:
    sizes = [case.feeds[i].shape[axis] for i, axis in case.program.symbols.values()]
    found = call_stats(encode(case.program), sizes)
    assert size in [c.size for c in found if c.products]


SCHEDULES = {
    "block_sparse": in_tasks(next(iter(sparse_cases())), TaskSchedule(rows=16, columns=16)),
    "gemm": gemm(5, 48, 16, 0, schedules=(GemmSchedule(8, nr_panels=1), GemmSchedule(1000))),
    "conv": conv(24, 33, (8, 8), (3, 3), pad=(1, 1, 1, 1), schedules=(ConvSchedule(h_tasks=2),)),
    "winograd": conv(24, 33, (8, 8), (3, 3), pad=(1, 1, 1, 1), m=2, schedules=(ConvSchedule(4),)),
    "conv_bf16": conv(
        32, 16, (8, 8), (1, 1), half=True, schedules=(ConvSchedule(), ConvSchedule(4))
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_calls_with_a_schedule_are_counted_as_those_without(name: str) -> None:
    program = SCHEDULES[name].program
    bare = tuple(replace(call, schedules=()) for call in program.calls)
    assert any(call.schedules for call in program.calls)
    sizes = [SCHEDULES[name].feeds[i].shape[axis] for i, axis in program.symbols.values()]
    assert call_stats(encode(program), sizes) == call_stats(
        encode(replace(program, calls=bare)), sizes
    )


def test_every_kind_of_schedule_is_among_them() -> None:
    tried = {
        type(d) for case in SCHEDULES.values() for c in case.program.calls for d in c.schedules
    }
    assert tried == {schema.schedule for schema in CALLS.values()} - {None}


def test_stored_blocks_are_what_is_multiplied() -> None:
    """A product by blocks counts two operations for each stored number and row."""
    case = next(case for case in sparse_cases() if case.expected and case.expected[0].size)
    sizes = [case.feeds[i].shape[axis] for i, axis in case.program.symbols.values()]
    (work,) = (w for w in call_stats(encode(case.program), sizes) if w.products)
    assert work.products == 2.0 * case.feeds[0].shape[0] * case.feeds[1].size


@pytest.mark.parametrize(
    ("name", "multiplies"),
    [("gemm_int16", "int16"), ("conv_first_layer_bf16", "bf16x2"), ("attention_f32_as_bf16",
        "bf16"),
     ("gemm_block_sparse_bf16", "bf16"), ("conv", "f32")],
)  # fmt: skip
def test_what_a_call_multiplies_is_its_roof(name: str, multiplies: str) -> None:
    schema = CALLS[name]
    assert (schema.product_type or schema.dtype) == multiplies and schema.problem is not None


@pytest.mark.parametrize("number", [-7, -3, -2, 0, 99])
def test_a_damaged_plan_is_refused_or_counted(number: int, cases: dict[str, Case]) -> None:
    """Whatever word is damaged, nothing but a GraphError comes of it."""
    for name in (CASE, f"{CASE}_by_8", "attention_added"):
        program = cases[name].program
        plan = list(encode(program))
        for at in range(len(plan)):
            damaged = [*plan[:at], number, *plan[at + 1 :]]
            with contextlib.suppress(GraphError):
                call_stats(damaged, [8] * len(program.symbols))


@pytest.mark.parametrize(
    ("extent", "code"), [(Expr("mul", ("m", 4)), 4), (Expr("min", ("m", 4)), 8)]
)
def test_an_operator_that_is_none_is_refused(extent: Expr, code: int) -> None:
    view = View(Buffer("input", 0), (extent,), (1,))
    call = CALLS.make("copy", x=view, y=View(Buffer("output", 0), (extent,), (1,)))
    plan = list(encode(single(call, [spec("m")], [spec(extent)], m=(0, 0))))
    for other in (-1, -5, 9):
        damaged = [other if word == code and plan[i - 2 : i] == [0, 4] else word
                   for i, word in enumerate(plan)]  # fmt: skip
        assert damaged != plan
        with pytest.raises(GraphError):
            call_stats(damaged, [8])


def test_a_kind_of_buffer_that_is_none_is_refused() -> None:
    view = View(Buffer("input", 0), (3,), (1,))
    call = CALLS.make("copy", x=view, y=View(Buffer("output", 0), (3,), (1,)))
    plan = list(encode(single(call, [spec(3)], [spec(3)])))
    head = plan.index(CALLS.opcode(call), 9)  # behind the counts
    assert plan[head + 7] == 0
    for other in (-2, -3, 3):
        damaged = [*plan]
        damaged[head + 7] = other  # the first word of the first view
        with pytest.raises(GraphError):
            call_stats(damaged, [])


def test_a_foreign_plan_is_refused() -> None:
    with pytest.raises(GraphError, match="cannot be read"):
        call_stats([1, 2, 3], [])
