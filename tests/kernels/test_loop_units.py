"""A library has the host loops that its kernels can run, and no more."""

from __future__ import annotations

from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.exported_functions import KERNELS
from tracea_graph.kernels.cpu.host_loop_units import COMMON, LOOP_UNITS, unit_of, units_for
from tracea_graph.kernels.cpu.library_build import manifest
from tracea_graph.kernels.program import LibraryContents


def test_loops_that_are_left_out_are_of_no_use_without_kernels() -> None:
    for schema in CALLS.values():
        assert schema.needs or unit_of(schema.op) == COMMON, schema.name
    ops = {schema.op for schema in CALLS.values()}
    assert all(ops.issuperset(unit) for unit in LOOP_UNITS.values())


def test_kernels_decide_about_units() -> None:
    assert units_for(()) == units_for({"gemm", "norm", "attention", "gather"}) == ()
    assert units_for({"pool"}) == units_for({"conv_bf16"}) == ("image",)
    assert units_for({"gemm_int8"}) == units_for({"top_k"}) == ("further",)
    assert units_for(KERNELS) == tuple(LOOP_UNITS)


def test_they_are_sources_of_the_library() -> None:
    sources = {
        k: manifest(LibraryContents(kernels=(k,)), ("scalar",))["sources"]
        for k in ("gemm", "conv")
    }
    assert "image_loops" in sources["conv"]
    assert not [name for name in sources["gemm"] if name.endswith("_loops")]
