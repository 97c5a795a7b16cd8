"""Which calls wait for rows, which for a barrier: what the model chooses, and what plans hold."""

from __future__ import annotations

import subprocess
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path

import pytest

from tests.runtime.linked_cases import linked_block
from tracea_graph.hardware.cpu import profile_cpu
from tracea_graph.hardware.machine_measurements import Bandwidth, Measurements, NamedFigure
from tracea_graph.kernels import cpu
from tracea_graph.kernels.cpu.call_links import (
    LINKED_THREADS,
    MOST_THREADS,
    CallLink,
    choose_links,
    divide_product,
)
from tracea_graph.kernels.cpu.core_measurement import (
    FAR_LINES,
    GROUPS,
    HANDOVER,
    NEAR_LINES,
    assumed_figures,
)
from tracea_graph.kernels.cpu.kernel_catalog import CATALOG
from tracea_graph.kernels.cpu.machine_model import machine_of
from tracea_graph.kernels.cpu.plan_encoding import decode, encode
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES
from tracea_graph.kernels.program import Attributes, Call
from tracea_graph.policy import Machine, OperatorTopology, PolicyEngine

SIXTEEN = Machine(
    gflops=135.0, l2_gbytes=80.0, l3_gbytes=22.0, dram_gbytes=15.0, l2_bytes=2 << 20,
    l3_bytes=300 << 20, cores=16, handover_us=0.12, line_gbytes=11.3, shared_gbytes=107.0,
)  # fmt: skip
"""A Xeon whose figures stand in ``models/RESULTS.md``."""
LINKED = MOST_THREADS + 1


def encoder(
    width: int, layers: int, rows: int = 128, layout: str = "panels"
) -> list[tuple[Call, OperatorTopology]]:
    """Return the products of a transformer, and its last norm."""
    call = Call("gemm", "f32", (), Attributes([("layout", layout)]))
    sizes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
    found = [(call, OperatorTopology("gemm", rows, n, k)) for n, k in sizes * layers]
    return [*found, (Call("norm", "f32", ()), OperatorTopology("norm", rows, width, 1))]


def test_the_library_decides_without_figures_of_several_cores() -> None:
    assert set(choose_links(encoder(384, 6), Machine())) == {CallLink()}


def test_weights_from_memory_are_read_by_few_threads() -> None:
    """MiniLM's fit into L3, BERT's do not: measured, its large products gain by columns."""
    assert {link.barrier_from for link in choose_links(encoder(384, 6), SIXTEEN)} == {LINKED}
    *products, norm = choose_links(encoder(768, 12), SIXTEEN)
    assert all(LINKED_THREADS <= link.barrier_from <= 16 for link in products)
    assert norm.barrier_from == LINKED
    assert "would read each weight" in products[0].reason
    assert "wait for rows" in norm.reason


def test_many_rows_are_linked() -> None:
    """With 1024 rows, arithmetic and the rows themselves outweigh weights that are read again."""
    found = choose_links(encoder(768, 12, rows=1024), SIXTEEN)
    assert {link.barrier_from for link in found} == {LINKED}


def test_a_barrier_for_few_rows_does_not_hold_for_many() -> None:
    """Measured: a product by columns for 128 rows slowed 1024 rows in bf16 down by 12 %."""
    calls = [(call, replace(one, static=False)) for call, one in encoder(768, 12)]
    *products, norm = choose_links(calls, SIXTEEN)
    assert all(128 <= link.barrier_rows < 1024 for link in products) and norm.barrier_rows == 0
    assert "up to" in products[0].reason
    assert {link.barrier_rows for link in choose_links(encoder(768, 12), SIXTEEN)} == {0}


def test_slow_lines_and_hand_overs_count() -> None:
    """Rows by columns are all read from other cores; if that is slow, they are linked."""
    slow = replace(SIXTEEN, line_gbytes=1.0)
    assert {link.barrier_from for link in choose_links(encoder(768, 12), slow)} == {LINKED}
    late = replace(SIXTEEN, handover_us=200.0)
    assert all(link.barrier_from <= 16 for link in choose_links(encoder(768, 12), late)[:-1])


def test_rows_of_other_groups_count() -> None:
    """Rows by columns mostly come from other L3s; where those are far, products are linked."""
    sockets = replace(SIXTEEN, groups=2, far_line_gbytes=SIXTEEN.line_gbytes)
    assert choose_links(encoder(768, 12), sockets) == choose_links(encoder(768, 12), SIXTEEN)
    far = replace(sockets, far_line_gbytes=0.5)
    assert {link.barrier_from for link in choose_links(encoder(768, 12), far)} == {LINKED}


def test_groups_are_read_from_measurements() -> None:
    cpu = replace(profile_cpu(), threads=16)
    named = ((GROUPS, 2.0), (NEAR_LINES, 20.0), (FAR_LINES[0], 10.0), (FAR_LINES[1], 5.0))
    further = (NamedFigure(f"{HANDOVER}, memory nodes", 0.2, "µs"),)
    further += tuple(NamedFigure(name, value, "") for name, value in named)
    bandwidth = Bandwidth(198.0, 111.0, 22.0, 13.0, dram_all=109.0, lines=8.0)
    figures = Measurements(assumed_figures(cpu).peaks, bandwidth, 2.5, further=further)
    machine = machine_of(cpu, figures)
    assert (machine.groups, machine.far_line_gbytes) == (2, 2.0)
    assert (machine.alone.groups, machine.alone.far_line_gbytes) == (1, 0.0)
    one = machine_of(cpu, replace(figures, further=further[:1]))
    assert (one.groups, one.far_line_gbytes, one.cores) == (1, 0.0, 16)


@pytest.mark.parametrize(("threads", "handover"), [(16, 0.4), (LINKED_THREADS - 1, 0.0)])
def test_the_slowest_hand_over_of_a_topology_counts(threads: int, handover: float) -> None:
    """Of two memory nodes; few processors say nothing about a team of many."""
    cpu = replace(profile_cpu(), threads=threads)
    further = tuple(
        NamedFigure(f"{HANDOVER}, {level}", us, "µs")
        for level, us in (("cores of an L3", 0.08), ("memory nodes", 0.4))
    )
    bandwidth = Bandwidth(198.0, 111.0, 22.0, 13.0, dram_all=109.0, lines=8.8)
    peaks = assumed_figures(cpu).peaks
    machine = machine_of(cpu, Measurements(peaks, bandwidth, 2.5, further=further))
    assert machine.handover_us == handover
    assert (machine.cores, machine.line_gbytes) == ((threads, 8.8) if handover else (0, 0.0))
    partly = replace(bandwidth, lines=0.0)
    assert machine_of(cpu, Measurements(peaks, partly, 2.5, further=further)).handover_us == 0.0


def test_calls_that_cannot_be_linked_are_left_to_the_library() -> None:
    product = Call("gemm", "f32", (), Attributes([("layout", "kn")]))
    calls = [(product, OperatorTopology("gemm", 128, 64, 64))]
    calls.append((Call("softmax", "f32", ()), OperatorTopology("softmax", 128, 64, 1)))
    assert choose_links(calls, SIXTEEN) == (CallLink(), CallLink())


def test_a_plan_holds_what_was_chosen_and_nothing_otherwise() -> None:
    program = linked_block().program
    engine = PolicyEngine(CATALOG, ("avx2",))
    plain, without = engine.planned(program, program.inputs, {"m": 128})
    chosen, decisions = engine.planned(program, program.inputs, {"m": 128}, machine=SIXTEEN)
    assert not any(one.link for one in without) and all(one.link for one in decisions)
    words, more = encode(plain), encode(chosen)
    assert more[3:] == (*words[3:], *(LINKED, 0) * len(program.calls))
    assert [one.call.barrier_from for one in decode(more).calls] == [LINKED] * len(program.calls)
    assert {one.call.barrier_from for one in decode(words).calls} == {0}


@pytest.mark.parametrize(("threads", "rows"), [(LINKED_THREADS, 0), (8, 512), (LINKED, 0)])
def test_words_of_some_calls(threads: int, rows: int) -> None:
    program = linked_block().program
    first, *rest = program.calls
    calls = (replace(first, barrier_from=threads, barrier_rows=rows), *rest)
    found = [one.call for one in decode(encode(replace(program, calls=calls))).calls]
    assert [call.barrier_from for call in found] == [threads] + [0] * len(rest)
    assert [call.barrier_rows for call in found] == [rows] + [0] * len(rest)


@pytest.mark.compiler
def test_products_are_divided_as_the_runtime_divides_them(tmp_path: Path) -> None:
    headers = Path(str(cpu.__file__)).parent
    made, source = tmp_path / "product_tasks", Path(__file__).with_name("product_tasks.cpp")
    options = ("-std=c++17", "-O0", f"-I{headers}", f"-I{headers.parent}", "-pthread")
    subprocess.run(["g++", *options, str(source), "-o", str(made)], check=True, timeout=600)
    sizes = [
        *product((5, 40, 64, 128, 197, 512, 1024), (16, 384, 1000, 4096), (768, 6500), (5, 16))
    ]
    lines = [len(GEMM_SCHEDULES), *(" ".join(map(str, astuple(s))) for s in GEMM_SCHEDULES)]
    lines += (" ".join(map(str, one)) for one in sizes)
    done = subprocess.run(
        [made], input="\n".join(map(str, lines)), check=True, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    wanted = [divide_product(OperatorTopology("gemm", m, n, k), t) for m, n, k, t in sizes]
    assert found == wanted
