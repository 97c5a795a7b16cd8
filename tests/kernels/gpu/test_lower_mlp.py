"""What a norm with two small matmuls behind it becomes on GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, optimized
from tests.kernels.gpu.cases import check
from tests.kernels.gpu.machine import HERE, Memory, run_here
from tests.kernels.gpu.mlp_cases import CASES, mlp, residual
from tracea_graph import passes
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, MLP_PARTS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.families import row_mlp
from tracea_graph.kernels.gpu.kernel_selection import (
    for_variant,
    kernel_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.lowering.lower import lower
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.gpu.tile_choice import LEAST_MLP_ROWS
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.kernels.program import Call, LibraryContents, Program
from tracea_graph.passes import PlanRequest

_WIDE = 224


def program(
    batch: int | str, columns: int = 96, hidden: int = 384, more: str = "", sizes: Any = None
) -> Program:
    """Lower ConvNeXt's block of 56 × 56 pixels in fp16; ``more`` reads what its norm computes."""
    net = Net()
    x = net.input("x", batch, columns, 56, 56)
    first = net("Relu", net("Conv", x, net.const(normal(columns, columns, 1, 1))))
    y = net("Conv", first, net.const(normal(columns, 1, 3, 3)), group=columns, pads=[1] * 4)
    y = net("Transpose", y, perm=[0, 2, 3, 1])
    affine = [net.const(normal(columns)) for _ in "gb"]
    normed = net("LayerNormalization", y, *affine, axis=-1)
    h = net("MatMul", normed, net.const(normal(columns, hidden)))
    h = net("Add", h, net.const(normal(hidden)))
    erf = net("Erf", net("Div", h, net.const(np.float32(2**0.5))))
    h = net("Mul", net("Mul", h, net("Add", erf, net.const(np.float32(1)))),
            net.const(np.float32(0.5)))  # fmt: skip
    h = net("MatMul", h, net.const(normal(hidden, columns)))
    h = net("Mul", net("Add", h, net.const(normal(columns))), net.const(normal(columns)))
    if more:
        h = net("Add", h, net(more, normed))
    made = net("Add", net("Transpose", h, perm=[0, 3, 1, 2]), first)
    graph = net.graph(net("Conv", made, net.const(normal(8, columns, 1, 1))))
    request = PlanRequest(precision="fp16")
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    graph.bindings = sizes or {}
    (region,) = graph.regions()
    return lower(graph, region)


def parts(made: Program) -> list[str]:
    return [c.attributes["part"] for c in made.calls if c.op == "mlp"]


def test_a_norm_and_two_small_matmuls_of_many_rows_are_one_launch() -> None:
    made = program(8)
    assert parts(made) == list(MLP_PARTS) and encode(made)
    blocks = [launches_for(c)[0][0].blocks({}) for c in made.calls if c.op == "mlp"]
    assert [0 in grid for grid in blocks] == [True, True, False]
    assert len({launches_for(c)[0][1] for c in made.calls if c.op == "mlp"}) == 1


def test_other_architectures_compute_the_parts() -> None:
    """By the kernels of the norm and of the matmuls, in their order."""
    old, found = ARCHITECTURES["sm_80"], list[Call]()
    for call in (c for c in program(8).calls if c.op == "mlp"):
        variant = next(v for v, _ in variants_of(call) if v.refusal(old) is None)
        found.append(for_variant(call, variant))
    assert [c.op for c in found] == ["norm", "gemm", "gemm"]
    norm, up, down = ({**CALLS.of(c).named(c)} for c in found)
    assert (norm["y"], up["y"][0]) == (up["x"], down["x"])


def test_weights_are_turned_after_they_are_converted() -> None:
    made, written = program(8), set[Any]()
    for call in made.calls:
        for operand, view in CALLS.of(call).each(call):
            if view is None:
                continue
            if operand.written:
                written.add(view.buffer)
            elif call.op == "copy" and view.buffer.kind == "temp":
                assert view.buffer in written


@pytest.mark.parametrize(
    ("batch", "columns", "hidden", "more"),
    [(1, 96, 384, ""), (8, _WIDE, 384, ""), (8, 72, 384, ""), (8, 96, 100, ""),
     (8, 96, 384, "Abs")],
)  # fmt: skip
def test_few_rows_other_sizes_and_norms_with_other_readers_stay_calls(
    batch: int, columns: int, hidden: int, more: str
) -> None:
    made = program(batch, columns, hidden, more)
    assert not parts(made) and [c.op for c in made.calls].count("norm") == 1


@pytest.mark.parametrize(
    ("columns", "images", "apart"), [(96, (4, 6, 32), (1, 3)), (192, (4, 5, 7, 32), (1, 3, 6))]
)
def test_a_batch_that_varies_has_the_parts_for_few_rows(
    columns: int, images: tuple[int, ...], apart: tuple[int, ...]
) -> None:
    """And for a second wave of few tiles, if weights pass through shared memory for each."""
    made = program("n", columns, 4 * columns, sizes={"n": 32})
    (symbol,) = made.symbols
    for call in (c for c in made.calls if c.op == "mlp"):
        ops = {
            n: next(v.op for v, when in variants_of(call) if evaluate(when, {symbol: n}) > 0)
            for n in (*images, *apart)
        }
        assert [n for n, op in ops.items() if op == "mlp"] == list(images)


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["mlp residual", "mlp streamed"])
def test_a_block_computes_tiles_one_after_another(name: str) -> None:
    """The ring of weights goes on from tile to tile."""
    case, memory = next(c for c in CASES if c.name == name), Memory()
    call, expected = case.make(memory, np.random.default_rng(2))
    variant = find(call, HERE.architecture, case.tiles[0])
    launch = replace(launch_of(call, variant, HERE), grid=(1, 1, 1))
    run_here(emit_kernel(call, variant, HERE), launch, memory, 2)
    check(memory, expected())


@pytest.mark.compiler
@pytest.mark.parametrize("columns", [96, 192])
def test_products_of_a_tile_run_without_waiting_for_each_other(columns: int) -> None:
    sides = columns, 4 * columns, columns
    made = mlp(DType.F16, LEAST_MLP_ROWS, sides, "gelu", residual(DType.F16))
    call, _ = made(Memory(), np.random.default_rng(0))
    variant, _ = variants_of(call)[0]
    kernel = emit_kernel(call, variant, Target(CUDA, ARCHITECTURES["sm_90a"]))
    (built,) = compile_sources([kernel], ["sm_90a"])
    assert built.refused is None and "C75" not in built.log, built.log


def test_a_kernel_is_made_from_its_name() -> None:
    made = mlp(DType.F16, LEAST_MLP_ROWS, (96, 192, 96), "gelu", residual(DType.F16))
    call, _ = made(Memory(), np.random.default_rng(0))
    variant, _ = variants_of(call)[0]
    assert call.chain is not None and variant.op == "mlp"
    contents = LibraryContents((), [kernel_of(call, variant)], [call.chain])
    (found,) = sources_of(contents, ["sm_90a"])["sm_90a"]
    assert "96x192x96" in found.symbol and HERE.architecture.name == "sm_90a"
    assert found.shared == row_mlp.shared(call, variant)
