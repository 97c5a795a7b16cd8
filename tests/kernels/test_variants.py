"""Several tiles of one kernel and level stand side by side; which one a library holds is said."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.conformance import GemmTile, Output, address, close, guarded, kernel
from tracea_graph.kernels.cpu import emitter, library_table, variants
from tracea_graph.kernels.cpu.isa_levels import LEVELS
from tracea_graph.kernels.cpu.variants import NO_TILES, VARIANTS, find_variant
from tracea_graph.kernels.program import LibraryContents

OTHER = {("gemm", "scalar"): "2x16"}


@pytest.fixture
def two_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second tile of products, as one more line of the table would have it."""
    more = variants._by_kernel((*VARIANTS, variants._gemm("scalar", 2, 1, 2)))
    monkeypatch.setattr(variants, "_KNOWN", more)


def test_no_two_variants_have_one_key() -> None:
    assert len({v.key for v in VARIANTS}) == len(VARIANTS)
    with pytest.raises(ValueError, match="two variants have the key gemm f32 scalar 4x16"):
        variants._by_kernel((*VARIANTS, find_variant("gemm", "scalar")))


@pytest.mark.parametrize("level", [isa.name for isa in LEVELS])
@pytest.mark.parametrize(
    ("kernel", "other"),
    [
        ("gemm", "gemm_int16"),
        ("gemm_bf16", "gemm_bf16x2"),
        ("conv", "conv_int16"),
        ("conv_bf16", "conv_bf16x2"),
    ],
)
def test_kernels_whose_sides_the_library_tells_once_have_one_tile(
    kernel: str, other: str, level: str
) -> None:
    assert find_variant(kernel, level).tile == find_variant(other, level).tile


@pytest.mark.usefixtures("two_tiles")
def test_the_first_that_is_listed_is_taken_unless_another_is_asked_for() -> None:
    assert find_variant("gemm", "scalar").tile == "4x16"
    assert find_variant("gemm", "scalar", OTHER).tile == "2x16"
    assert find_variant("gemm", "avx2", OTHER).tile == "6x16"
    source = emitter.emit_unit("gemm", "scalar", tiles=OTHER)
    assert source.symbol == "tracea_f32_gemm_2x16__scalar"
    held = ("tracea.0123456789", LibraryContents(kernels=("gemm",)), ("scalar",))
    assert "tracea_f32_gemm_4x16__scalar" in library_table.table_source(*held)
    made = library_table.table_source(*held, OTHER)
    assert "tracea_f32_gemm_2x16__scalar" in made and "4x16__scalar" not in made.split("levels")[0]
    assert '{"scalar", 2, 1, 4, 1,' in made


@pytest.mark.usefixtures("two_tiles")
@pytest.mark.parametrize("tiles", [NO_TILES, OTHER], ids=["first", "other"])
def test_either_multiplies(tiles: variants.Tiles) -> None:
    unit = emitter.emit_unit("gemm", "scalar", tiles=tiles)
    run = kernel(unit, emitter.symbols("gemm", "scalar", tiles=tiles)[0])
    rng = np.random.default_rng(0)
    a, b = (guarded(rng.standard_normal(s).astype(np.float32)) for s in ((2, 5), (5, 16)))
    out = Output(2, 16)
    run(GemmTile(
        k=5, a=address(a), lda=5, a_step=1, b=address(b), b_panel=80, b_row=16, c=out.address,
        ldc=out.stride, mr=2, nv=1, last=16, b_exact=True,
    ))  # fmt: skip
    out.check_canaries()
    close(out.view, a @ b, 1e-6)


@pytest.mark.usefixtures("two_tiles")
def test_what_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError, match="there is no kernel fft for avx512"):
        find_variant("fft", "avx512")
    with pytest.raises(KeyError, match="no tile 3x16 for scalar, only 4x16, 2x16"):
        find_variant("gemm", "scalar", {("gemm", "scalar"): "3x16"})
