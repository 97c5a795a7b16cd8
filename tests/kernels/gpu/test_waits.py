"""Kernels touch nothing that depends on the grid before them until they have waited for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.all_cases import CASES
from tests.kernels.gpu.cases import Case, check
from tests.kernels.gpu.machine import HERE, Memory, compiled, run_after
from tests.kernels.gpu.test_emitter import NAMED
from tests.kernels.gpu.test_kernels import source
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.launch import i32
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.kernels.program import Buffer


def one_of_each() -> list[tuple[Case, str]]:
    """Return a case and a tile for each template."""
    found: dict[str, tuple[Case, str]] = {}
    for case in CASES:
        call, _ = case.make(Memory(), np.random.default_rng(0))
        for tile in case.tiles:
            found.setdefault(find(call, HERE.architecture, tile).template, (case, tile))
    return list(found.values())


EACH = [pytest.param(c, t, id=f"{c.name} {t}") for c, t in one_of_each()]


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_at_once() -> None:
    """Compile all kernels at once."""
    compiled([source(*pair.values) for pair in EACH])


def run(case: Case, tile: str, orders: int, late: bool = True) -> None:
    """Run a case in some orders of its threads; not ``late`` drops its kernel's first wait."""
    for seed in range(orders):
        memory = Memory()
        call, expected = case.make(memory, np.random.default_rng(seed))
        variant = find(call, HERE.architecture, tile)
        source = emit_kernel(call, variant, HERE)
        if not late:
            head, name, body = source.text.rpartition("KERNEL(")
            body = body.replace("wait_for_grid();", ";", 1)
            source = replace(source, text=head + name + body)
        views = CALLS.of(call).each(call)
        written = {v.buffer.index for o, v in views if o.written and v is not None}
        run_after(source, launch_of(call, variant, HERE), memory, written, seed)
        check(memory, expected())


@pytest.mark.parametrize(("case", "tile"), EACH)
def test_operands_are_read_and_results_written_after_the_wait(case: Case, tile: str) -> None:
    run(case, tile, 2)


def run_with_inputs(case: Case, present: bool) -> None:
    """Run attention whose caches and positions are inputs; not ``present``: they come too late."""
    for seed in range(2):
        memory = Memory()
        call, expected = case.make(memory, np.random.default_rng(seed))
        variant = find(call, HERE.architecture, case.tiles[-1])
        launch = launch_of(call, variant, HERE)
        launch = replace(launch, arguments=(*launch.arguments[:-1], i32(1)))
        named = CALLS.of(call).named(call)
        given = {named[n].buffer.index for n in INPUTS} if present else set[int]()
        written = {named[n].buffer.index for n in ("k", "v", "y")}
        run_after(emit_kernel(call, variant, HERE), launch, memory, written, seed, given)
        check(memory, expected())


INPUTS = ("positions", "past_k", "past_v")


@pytest.mark.parametrize("name", ["cached one row", "cached in place"])
def test_attention_reads_inputs_before_the_wait(name: str) -> None:
    run_with_inputs(NAMED[name], present=True)
    with pytest.raises(AssertionError):
        run_with_inputs(NAMED[name], present=False)


def test_attention_is_told_of_inputs_of_its_program() -> None:
    call, _ = NAMED["cached one row"].make(Memory(), np.random.default_rng(0))
    variant = find(call, HERE.architecture, "256x8")
    buffers = {CALLS.of(call).named(call)[n].buffer: Buffer("input", i)
               for i, n in enumerate(INPUTS)}  # fmt: skip
    assert launch_of(call, variant, HERE).arguments[-1].value == 0
    views = tuple(v and replace(v, buffer=buffers.get(v.buffer, v.buffer)) for v in call.views)
    made = launch_of(replace(call, views=views), variant, HERE)
    assert made.arguments[-1].value == 1


@pytest.mark.parametrize("name", ["few layer", "wgmma kn 70 136 200"])
def test_a_thread_that_copies_without_waiting_is_found(name: str) -> None:
    """The threads that multiply wait all the same."""
    case = NAMED[name]
    with pytest.raises(AssertionError):
        run(case, case.tiles[0], 4, late=False)
