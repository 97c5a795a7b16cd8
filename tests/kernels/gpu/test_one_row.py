"""Which kernels multiply one row, and when they let the next kernel start."""

from __future__ import annotations

import pytest

from tests.kernels.gpu.programs import program_of
from tests.kernels.gpu.test_launch_order import FIRST, SECOND, WIDE, X, Y, double, product, program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import (
    FEW_ROWS,
    kernels_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.one_row_choice import ONE_ROW
from tracea_graph.kernels.gpu.release_choice import early_releases, with_releases
from tracea_graph.kernels.gpu.tile_choice import ONE_CODED_ROW, one_row_width
from tracea_graph.kernels.program import Buffer, Call, LibraryContents, View
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import NK

THREE, TWO = "1x16x8x128x3", "1x16x8x128x2"


def row(columns: int, depth: int, x: Buffer = X, y: Buffer = Y) -> Call:
    return CALLS.make(
        "gemm", "f16", x=View.dense(x, (1, depth)), w=View.dense(WIDE, (columns, depth)),
        bias=None, inputs=[], y=[View.dense(y, (1, columns))], layout="nk", chain=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "depth", "expected"),
    [
        (2048, 2048, [THREE, TWO]),
        (2048, 8192, [THREE, TWO]),  # one block for each SM
        (8192, 8192, [TWO]),  # two blocks of an SM have no space for rings of three
    ],
)
def test_rings_are_as_long_as_shared_memory_allows(
    columns: int, depth: int, expected: list[str]
) -> None:
    found = [v.tile for v, _ in variants_of(row(columns, depth)) if v.template == "gemm_one.cu.in"]
    assert found == expected


@pytest.mark.parametrize(
    ("columns", "depth", "warps"),
    [(3072, 2048, 8), (2048, 2048, 8), (2048, 8192, 16), (16384, 2048, 16), (128256, 2048, 4)]
    + [(6144, 1024, 8), (16384, 3072, 8), (28672, 4096, 16), (0, 2048, 8)],
)  # fmt: skip
def test_blocks_of_codes_have_as_many_warps_as_suit(columns: int, depth: int, warps: int) -> None:
    assert ONE_CODED_ROW[one_row_width(columns, depth)][0] == warps


@pytest.mark.parametrize(("columns", "depth"), [(768, 3072), (2048, 2048)])
def test_few_rows_share_no_sums_through_memory(columns: int, depth: int) -> None:
    """Also where one row has a kernel of its own, with rings of either length."""
    specs = [TensorSpec(DType.F32, ("rows", depth)), TensorSpec(DType.F32, (columns, depth))]
    *_, call = program_of(GemmParams(depth, columns, NK), specs, DType.F16, {"rows": 128}).calls
    templates = list(dict.fromkeys(v.template for v, _ in variants_of(call)))
    assert templates[:2] == [ONE_ROW, FEW_ROWS]
    assert CALLS.of(call).named(call)["partial"] is None


def test_libraries_leave_out_rings_that_a_block_cannot_have() -> None:
    names = kernels_of(row(2048, 2048))
    found = sources_of(LibraryContents((), names, ()), ["sm_90a", "sm_120"])
    rings = {level: [s.symbol.split("__")[0][-12:] for s in own if "_one_" in s.symbol]
             for level, own in found.items()}  # fmt: skip
    assert rings == {"sm_90a": [TWO, THREE], "sm_120": [TWO]}


def test_a_product_behind_a_kernel_without_weights_releases_the_next_one_early() -> None:
    made = program(product(X, FIRST), double(FIRST, SECOND), product(SECOND, Y))
    assert early_releases(made) == [False, False, True]
    assert early_releases(program(product(X, FIRST), product(FIRST, Y))) == [False, False]


def test_launches_are_told_when_to_release() -> None:
    made = program(double(X, FIRST), row(2048, 2048, FIRST, SECOND), row(2048, 2048, SECOND, Y))
    found = with_releases(made, [launches_for(call) for call in made.calls])
    late = [[a.value for a in own[0][0].arguments if a.kind == "late"] for own in found]
    assert late == [[], [0], [1]]
