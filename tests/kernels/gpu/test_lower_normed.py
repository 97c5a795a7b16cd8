"""When a matmul of bytes and the norm of its rows are one launch on GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.normed_cases import RESIDUAL, ROW, normed
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, NORMED_PARTS
from tracea_graph.kernels.gpu.families import normed_integers
from tracea_graph.kernels.gpu.kernel_selection import (
    for_variant,
    kernel_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.launch_order import launch_order
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.lowering.normed_integers import fold_norms_of_integers
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.program import Call, LibraryContents, Program
from tracea_graph.ops.chain import Chain, Step

_OP = "normed_integer_gemm"


def parts(
    rows: int = 4096, n: int = 384, chain: Chain = RESIDUAL, depth: int = 256
) -> tuple[Memory, list[Call]]:  # fmt: skip
    """A matmul of bytes and the norm that alone reads it."""
    memory = Memory()
    call, _ = normed(DType.U8, rows, n, depth, 7, chain)(memory, np.random.default_rng(0))
    return memory, [normed_integers.part_of(call.having(part=part)) for part in NORMED_PARTS]


def folded(calls: list[Call]) -> list[Call]:
    w = GpuProgramWriter((), ())
    w.calls.extend(calls)
    fold_norms_of_integers(w)
    return w.calls


def remade(call: Call, **changed: Any) -> Call:
    named: dict[str, Any] = CALLS.of(call).named(call)
    return CALLS.make(call.op, call.dtype, **{**named, **call.attributes, "chain": call.chain,
                                              **changed})  # fmt: skip


def ops(calls: list[Call]) -> list[str]:
    return [c.op for c in calls]


@pytest.mark.parametrize("n", [384, 512, 768])
def test_a_matmul_and_its_norm_are_one_launch(n: int) -> None:
    made = folded(parts(n=n)[1])
    assert [(c.op, c.attributes["part"]) for c in made] == [(_OP, p) for p in NORMED_PARTS]
    before, last = (launches_for(c)[0][0].blocks({})[0] for c in made)
    assert (before, last) == (0, 2 * 4096 // 64)
    assert len({symbol for c in made for _, symbol in launches_for(c)[:1]}) == 1


def test_a_norm_says_that_it_reads_rows_as_they_are() -> None:
    product, norm = parts()[1]
    chain = Chain(("full",), (), (0,), (DType.F16,))
    assert ops(folded([product, replace(norm, chain=chain)])) == [_OP, _OP]
    scaled = replace(chain, steps=(Step("mul", (0, 2.0)),), results=(1,))
    assert ops(folded([product, replace(norm, chain=scaled)])) == ["integer_gemm", "norm"]


def test_explain_counts_what_is_launched() -> None:
    """One launch for rows of one wave; two for few, for more, and where they are unknown."""
    calls = [
        replace(c, views=tuple(v and replace(v, dims=tuple({4096: "s"}.get(d, d) for d in v.dims))
                               for v in c.views))
        for c in parts()[1]
    ]  # fmt: skip
    program = Program((), (), {"s": (0, 1)}, (), tuple(folded(calls)))

    def names(**sizes: int) -> list[str]:
        return [one.kernel for one in launch_order(program, frozenset(), sizes)]

    assert names(s=4096) == [f"{_OP}_u8"]
    assert names(s=8) == names(s=4225) == names() == ["integer_gemm_u8", "norm_f16"]


def test_numbers_of_epilogue_and_norm_are_arguments() -> None:
    _, calls = parts()
    launch, _ = launches_for(folded(calls)[-1])[0]
    values = [a.value for a in launch.arguments if a.kind == "f32"]
    attributes = calls[-1].attributes
    assert values[:5] == [attributes[a] for a in ("epsilon", "step", "zero", "low", "high")]
    assert {0.28125, 135.0} <= set(values[5:])


def test_a_library_has_one_kernel_of_both_parts() -> None:
    calls = folded(parts()[1])
    names = [kernel_of(c, variants_of(c)[i][0]) for c in calls for i in (0, -1)]
    contents = LibraryContents((), names, [c.chain for c in calls if c.chain])
    made = [one.symbol for one in sources_of(contents, ["sm_90a"])["sm_90a"]]
    assert sum("_normed_" in symbol for symbol in made) == 1
    assert len(made) == 3  # and a kernel of each part
    assert encode(Program((), (), {}, (), tuple(calls)))


def test_other_architectures_compute_both() -> None:
    old, calls = ARCHITECTURES["sm_80"], parts()[1]
    product, norm = folded(calls)
    for call, own in ((product, remade(calls[0], column_sums=None)), (norm, calls[1])):
        variant = next(v for v, _ in variants_of(call) if v.refusal(old) is None)
        assert for_variant(call, variant) == own


def test_rows_that_others_read_or_write_stay_apart() -> None:
    memory, (product, norm) = parts()
    named = CALLS.of(product).named(product)
    (middle,), x = named["y"], named["x"]  # type: ignore[misc]
    copy = CALLS.make("copy", "b2", x=middle, y=memory.empty((4096, 384), np.float16))
    assert ops(folded([product, norm, copy])) == ["integer_gemm", "norm", "copy"]
    other = CALLS.make("copy", "b1", x=memory.empty((4096, 256), np.uint8), y=x)
    assert ops(folded([product, other, norm])) == ["integer_gemm", "copy", "norm"]
    assert ops(folded([other, product, norm])) == ["copy", _OP, _OP]


def test_what_takes_as_long_as_two_launches_stays_apart() -> None:
    """Few rows, more than one wave of clusters, and a long depth of wide rows."""
    for rows, n, depth in (
        (1024, 384, 256),
        (8192, 384, 256),
        (2048, 768, 256),
        (4096, 768, 3072),
    ):
        assert ops(folded(parts(rows, n, depth=depth)[1])) == ["integer_gemm", "norm"]
    assert ops(folded(parts(4096, 384, depth=1536)[1])) == [_OP, _OP]


def test_norms_without_a_kernel_stay_apart() -> None:
    """Of other widths, without beta, and of roots of squares; those that store rows too."""
    assert ops(folded(parts(n=400)[1])) == ["integer_gemm", "norm"]
    memory, (product, norm) = parts(chain=ROW)
    kept = memory.empty((4096, 384), np.float16)
    for changed in ({"beta": None}, {"kind": "rms"}, {"y": kept}):
        assert ops(folded([product, remade(norm, **changed)])) == ["integer_gemm", "norm"]
