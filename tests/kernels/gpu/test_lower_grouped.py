"""When matmuls of bytes of the same rows are one launch on GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.grouped_cases import matmul
from tests.kernels.gpu.integer_cases import some
from tests.kernels.gpu.machine import Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, GROUP_PARTS
from tracea_graph.kernels.gpu.families import grouped_integers
from tracea_graph.kernels.gpu.kernel_selection import (
    for_variant,
    kernel_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.launch_order import launch_order
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.lowering.grouped_integers import group_integer_matmuls
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.program import Call, LibraryContents, Program
from tracea_graph.ops.chain import Chain, Step

_OP = "grouped_integer_gemm"


def matmuls(count: int = 3, n: int = 192, rows: int = 512) -> tuple[Memory, list[Call]]:
    """Matmuls of the same rows by ``n`` columns each, whose epilogues differ in their numbers."""
    memory, rng = Memory(), np.random.default_rng(0)
    x = some(rng, (rows, 256), DType.U8)
    named = {"x": memory.put(x), "shifted": True, "zero": 7}
    return memory, [matmul(memory, rng, x, n, i, **named)[0] for i in range(count)]


def grouped(calls: list[Call]) -> list[Call]:
    w = GpuProgramWriter((), ())
    w.calls.extend(calls)
    group_integer_matmuls(w)
    return w.calls


def remade(call: Call, **changed: Any) -> Call:
    named: dict[str, Any] = CALLS.of(call).named(call)
    return CALLS.make(call.op, call.dtype, **{**named, **call.attributes, "chain": call.chain,
                                              **changed})  # fmt: skip


@pytest.mark.parametrize("count", [2, 3])
def test_matmuls_of_the_same_rows_are_one_launch(count: int) -> None:
    made = grouped(matmuls(count)[1])
    assert [(c.op, c.attributes["part"]) for c in made] == [(_OP, p) for p in GROUP_PARTS[:count]]
    launches = [launches_for(c)[0] for c in made]
    *before, last = (launch.blocks({})[0] for launch, _ in launches)
    assert before == [0] * (count - 1)
    assert last > 0
    assert len({symbol for _, symbol in launches}) == 1


def test_explain_counts_what_is_launched() -> None:
    """One launch for many rows; three for few, and where their number is unknown."""
    calls = [
        replace(c, views=tuple(v and replace(v, dims=tuple("s" if d == 512 else d for d in v.dims))
                               for v in c.views))
        for c in matmuls()[1]
    ]  # fmt: skip
    program = Program((), (), {"s": (0, 1)}, (), tuple(grouped(calls)))

    def names(**sizes: int) -> list[str]:
        return [one.kernel for one in launch_order(program, frozenset(), sizes)]

    assert names(s=512) == [f"{_OP}_u8"]
    assert names(s=8) == names() == ["integer_gemm_u8"] * 3


def test_numbers_of_all_matmuls_are_arguments() -> None:
    calls = matmuls()[1]
    launch, _ = launches_for(grouped(calls)[-1])[0]
    own = [number for c in calls for number in grouped_integers.numbers_of(c)[1]]
    assert len(set(own)) > 3
    assert {a.value for a in launch.arguments if a.kind == "f32"} == set(own)


def test_a_library_has_one_kernel_of_all_parts() -> None:
    """And those of parts, which share theirs too: epilogues differ in arguments alone."""
    calls = grouped(matmuls()[1])
    names = [kernel_of(c, variants_of(c)[i][0]) for c in calls for i in (0, -1)]
    contents = LibraryContents((), names, [c.chain for c in calls if c.chain])
    made = [one.symbol for one in sources_of(contents, ["sm_90a"])["sm_90a"]]
    assert sum("_grouped_" in symbol for symbol in made) == 1
    assert len(made) == 4  # and a kernel of each part by `mma.sync`
    assert encode(Program((), (), {}, (), tuple(calls)))


def test_other_architectures_compute_each_matmul() -> None:
    old, calls = ARCHITECTURES["sm_80"], matmuls()[1]
    for call, own in zip(grouped(calls), calls, strict=True):
        variant = next(v for v, _ in variants_of(call) if v.refusal(old) is None)
        wanted = remade(own, column_sums=None)  # which only warpgroups read
        assert for_variant(call, variant) == wanted


def test_what_is_read_between_is_not_grouped() -> None:
    memory, calls = matmuls()
    (y,) = [v for o, v in CALLS.of(calls[0]).each(calls[0]) if o.written and v is not None]
    to = memory.empty((512, 192), np.float16)
    copy = CALLS.make("copy", "b2", x=y, y=to)
    assert [c.op for c in grouped([calls[0], copy, *calls[1:]])] == [
        "integer_gemm", "copy", "integer_gemm", "integer_gemm",
    ]  # fmt: skip
    assert [c.op for c in grouped([*calls, copy])] == [_OP] * 3 + ["copy"]


def test_matmuls_that_differ_are_not_grouped() -> None:
    """By zero points, and by the kind of their epilogue."""
    first, second = matmuls(2)[1]
    other = remade(second, zero=8)
    assert [c.op for c in grouped([first, other])] == ["integer_gemm"] * 2
    chain = second.chain
    assert isinstance(chain, Chain)
    steps = (*chain.steps, Step("neg", (5,)))
    other = replace(second, chain=replace(chain, steps=steps, results=(6,)))
    assert [c.op for c in grouped([first, other])] == ["integer_gemm"] * 2


def test_a_tile_has_columns_of_one_matrix() -> None:
    assert [c.op for c in grouped(matmuls(n=200)[1])] == ["integer_gemm"] * 3
    made = grouped(matmuls(n=96)[1])[-1]
    assert made.op == _OP
    tiles = [v.params["n"] for v, _ in variants_of(made) if v.op == _OP]
    assert tiles
    assert all(96 % n == 0 for n in tiles)
