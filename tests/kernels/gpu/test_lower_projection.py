"""When attention and its projection are one launch on GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.projection_cases import projected
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, PROJECTION_PARTS
from tracea_graph.kernels.gpu.families import attention_projection
from tracea_graph.kernels.gpu.kernel_selection import (
    for_variant,
    kernel_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.launch_order import launch_order
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.lowering.attention_projection import fold_attention_projections
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call, LibraryContents, Program

_OP = "attention_projection"


def whole(batch: int = 1, length: int = 128, **changed: Any) -> Call:
    """A call of attention and its projection, with other operands or attributes."""
    call, _ = projected(DType.F16, batch, length, True)(Memory(), np.random.default_rng(0))
    return _made(call, **changed)


def _made(call: Call, **changed: Any) -> Call:
    named: dict[str, Any] = CALLS.of(call).named(call)
    given = {**named, **call.attributes, "chain": call.chain, **changed}
    return CALLS.make(call.op, call.dtype, **given)


def apart(call: Call) -> list[Call]:
    """The attention and the matmul that a call stands for."""
    return [attention_projection.part_of(_made(call, part=part)) for part in PROJECTION_PARTS]


def folded(calls: list[Call]) -> list[Call]:
    w = GpuProgramWriter((), ())
    w.calls.extend(calls)
    fold_attention_projections(w)
    return w.calls


def test_attention_and_its_projection_are_one_launch() -> None:
    made = folded(apart(whole()))
    assert [(c.op, c.attributes["part"]) for c in made] == [(_OP, p) for p in PROJECTION_PARTS]
    launches = [launches_for(c)[0] for c in made]
    assert [launch.blocks({})[0] for launch, _ in launches] == [0, 6 * 128 // 16]
    assert len({symbol for _, symbol in launches}) == 1


def test_explain_counts_what_is_launched() -> None:
    """One launch for few rows; two for more, and where sizes are unknown."""
    call = whole()
    views = (
        v and replace(v, dims=tuple("s" if d == 128 else d for d in v.dims)) for v in call.views
    )
    calls = tuple(folded(apart(replace(call, views=tuple(views)))))
    program = Program((), (), {"s": (0, 1)}, (), calls)

    def names(**sizes: int) -> list[str]:
        return [one.kernel for one in launch_order(program, frozenset(), sizes)]

    assert names(s=128) == [f"{_OP}_f16"]
    assert names(s=144) == names() == ["attention_f16", "gemm_f16"]


def test_other_architectures_compute_the_parts() -> None:
    old, calls = ARCHITECTURES["sm_80"], apart(whole())
    for call, own in zip(folded(calls), calls, strict=True):
        variant = next(v for v, _ in variants_of(call) if v.refusal(old) is None)
        assert for_variant(call, variant) == own


@pytest.mark.parametrize("sizes", [(1, 144), (9, 16), (2, 72)])
def test_more_rows_stay_apart(sizes: tuple[int, int]) -> None:
    """More than 128 keys, or more clusters than those of 128 rows."""
    assert [c.op for c in folded(apart(whole(*sizes)))] == ["attention", "gemm"]


def test_what_others_read_is_written() -> None:
    attention, project = apart(whole())
    read = CALLS.make("copy", "b2", x=attention.views[-1], y=attention.views[0])
    assert [c.op for c in folded([attention, project, read])] == ["attention", "gemm", "copy"]


def test_sizes_that_vary_have_both() -> None:
    call = whole()
    named: dict[str, Any] = CALLS.of(call).named(call)
    varying = {
        n: replace(named[n], dims=(1, 12, "n", 32)) for n in ("q", "k", "v", "attended")
    }  # fmt: skip
    choices = variants_of(_made(call, **varying))
    used = {n: next(v.op for v, when in choices if evaluate(when, {"n": n}) > 0)
            for n in (1, 16, 128, 129)}  # fmt: skip
    assert used == {1: _OP, 16: _OP, 128: _OP, 129: "gemm"}


@pytest.mark.parametrize(
    ("operand", "changed", "why"),
    [
        ("q", {"dims": (1, 6, 128, 64)}, "in heads of 32"),
        ("k", {"strides": (1, 64, 1152, 1)}, "beside each other"),
        ("mask", {"strides": (128, 0, 1, 1)}, "for all queries"),
        ("mean", {"strides": (2, 0)}, "one number per row"),
        ("y", {"strides": (388, 1)}, "not aligned"),
        ("v", {"strides": ("n", 32, 1152, 1)}, "not aligned"),
        ("x", {"strides": (1, 384)}, "not contiguous"),
    ],
)
def test_other_layouts_are_refused(operand: str, changed: dict[str, Any], why: str) -> None:
    call = whole()
    variant = variants_of(call)[0][0]
    named: dict[str, Any] = CALLS.of(call).named(call)
    other = _made(call, **{operand: replace(named[operand], **changed)})
    assert why in attention_projection.refusal(other, variant)
    assert attention_projection.refusal(call, variant) == ""


def test_a_kernel_is_made_from_its_name() -> None:
    call = whole()
    variant, _ = variants_of(call)[0]
    assert call.chain is not None and variant.op == _OP
    contents = LibraryContents((), [kernel_of(call, variant)], [call.chain])
    (found,) = sources_of(contents, ["sm_90a"])["sm_90a"]
    assert "384_add" in found.symbol
    assert found.shared == attention_projection.shared(call, variant)
