"""Kernels as text: equal every time, named by a grammar, launched within what a GPU counts."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.gpu.all_cases import CASES
from tests.kernels.gpu.cases import Case
from tests.kernels.gpu.machine import Memory
from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, kernel_preamble, launch_of
from tracea_graph.kernels.gpu.kernel_selection import for_variant, kernel_of, variants_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import MOST, Launch, divisor_words, pointer
from tracea_graph.kernels.gpu.library_build import sources_of
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant, candidates, find
from tracea_graph.kernels.program import Buffer, Call, LibraryContents, View

NAMED = {case.name: case for case in CASES}
SYMBOL = re.compile(r"tracea_[a-z0-9]+_[a-z0-9]+(_[a-z0-9]+)*__sm_[0-9]+a?")
FEW = ("gated f16 (3, 64)", "f16 late", "attention bottom 20")
MORE = ("chosen (4, 33)", "layer bf16 (5, 768)", "bf16 layer", "turn f16", "conv 3x3",
        "depthwise 3x3", "tf32x3 kn 1 1 1", "f32 nk 1 1 1", "rows window", "embedding",
        "take", "depths few steps", "gate halves", "low rank 128", "slices f32", "order",
        "updates add f16",
        "arg 300", "ramp",
        "elements add f16", "integers Mod i64",
        "running sum exclusive f16", "samples cubic reflection f16",
        "top 7 of 300", "resize half_pixel", "resize cubic half_pixel", "cache", "lstm",
        "same 1000 0", "conv f32", "wgmma kn 70 136 200", "few layer", "u8 70 136 200",
        "i8 rounded", "u8 conv 3x3", "i8 depthwise", "u8 pool", "range f16 5000",
        "float8 70 136 200", "float8 wgmma plain 140 72 144", "float8 stored 1003",
        "float8 norm 64 True", "u8 norm 64 False", "u8 wgmma levels",
        "float8 wgmma small 300 264 144",
        "float8 promoted 300 264 400", "float8 e5m2 by e4m3fn", "float8 wgmma e4m3fn by e5m2",
        "blocks f16", "two of four f16", "nbits f16 4 32 middle 7", "nbits f16 4 32 middle 67",
        "one row rms", "projected residual",
        "nbits one row normed 1088", "attention projection masked")  # fmt: skip
"""A kernel of each family: all of them take minutes to compile for all architectures.

The default tests compile the first tile of each of their templates; slow ones compile all tiles.
"""
OFTEN = ("sm_75", "sm_90a")
"""The oldest and the strictest architecture, in the default tests; the latter has more."""
CROWDED = ("running sum of columns f16", "resize cubic to 4 16 f16", "samples cubic zeros f16",
           "float8 norm by rows 64", "expanded depthwise 5x5")  # fmt: skip
"""Kernels whose registers just suffice for the blocks of an SM, as they were timed on an H100."""


@cache
def call_of(case: Case) -> Call:
    """The call of a case, without its buffers; to draw their numbers takes longer than to emit."""
    return case.make(Memory(), np.random.default_rng(0))[0]


def made(case: Case, name: str, tile: str = "") -> tuple[Call, Variant, Target]:
    call, target = call_of(case), Target(CUDA, ARCHITECTURES[name])
    return call, find(call, target.architecture, tile or case.tiles[0]), target


def tiles_of(case: Case, name: str) -> list[tuple[Call, Variant, Target]]:
    """The tiles of a case that an architecture has the features for."""
    architecture = ARCHITECTURES[name]
    if not all(architecture.has(feature) for feature in case.needs):
        return []
    able = {"", *(v.tile for v in candidates(call_of(case), architecture))}
    return [made(case, name, tile) for tile in case.tiles if tile in able]


def sources(names: tuple[str, ...], name: str) -> list[KernelSource]:
    """The kernels of all these tiles."""
    return [emit_kernel(*tile) for one in names for tile in tiles_of(NAMED[one], name)]


def one_of_each_template(names: tuple[str, ...], name: str) -> list[KernelSource]:
    """The first tile of each template that a case has."""
    first = {
        (one, tile[1].template): tile
        for one in names for tile in reversed(tiles_of(NAMED[one], name))
    }  # fmt: skip
    return [emit_kernel(*tile) for tile in first.values()]


@pytest.mark.parametrize(
    ("case", "name", "file"),
    [
        ("gated f16 (3, 64)", "sm_80", "chain.cu"),
        ("layer late", "sm_90a", "norm.cu"),
        ("f16 layer", "sm_80", "gemm.cu"),
    ],
)
def test_goldens(case: str, name: str, file: str, golden: Callable[[str, str], None]) -> None:
    """What is a kernel's own: the words before it are files as they are."""
    call, variant, target = made(NAMED[case], name)
    source = emit_kernel(call, variant, target)
    assert source == emit_kernel(call, variant, target)
    golden(file, source.text.replace(kernel_preamble(target), ""))


def test_symbols_name_texts_that_include_nothing() -> None:
    """Equal symbols have equal texts."""
    found: dict[str, str] = {}
    for case in CASES:
        for tile in case.tiles:
            source = emit_kernel(*made(case, "sm_90a", tile))
            assert found.setdefault(source.symbol, source.text) == source.text
            assert "#include" not in source.text
            assert SYMBOL.fullmatch(source.symbol), source.symbol
            assert f" {source.symbol}(" in source.text or f" {source.symbol}\n" in source.text


@pytest.mark.compiler
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in OFTEN)) for n in ARCHITECTURES],
)
def test_kernels_fit_every_architecture(name: str) -> None:
    names = (*FEW, *MORE) if name == OFTEN[-1] else FEW
    for built in compile_sources(one_of_each_template(names, name), [name]):
        assert built.refused is None
        assert built.facts is not None and built.facts.threads == built.source.threads


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["sm_80", "sm_120"])
def test_registers_suffice_on_other_architectures_too(name: str) -> None:
    for built in compile_sources(one_of_each_template(CROWDED, name), [name]):
        assert built.refused is None


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ARCHITECTURES, "compute_90"])
def test_every_case_has_a_kernel_on_every_architecture(name: str) -> None:
    """Of its tiles or of those that plans list for it one fits, and others say why they do not."""
    own = name if name in ARCHITECTURES else "sm_90a"
    able = [c for c in NAMED if all(ARCHITECTURES[own].has(f) for f in NAMED[c].needs)]
    texts, refused = {case: sources((case,), own) for case in able}, dict[str, str]()
    for fallbacks in (False, True):
        if fallbacks:
            texts = {case: listed(NAMED[case], own) for case in lost(texts, refused)}
        unique = {s.symbol: s for found in texts.values() for s in found}
        built = compile_sources(list(unique.values()), [name])
        refused |= {b.source.symbol: b.refused for b in built if b.refused}
    assert lost(texts, refused) == [], refused
    assert all("local memory" in why or "shared memory" in why for why in refused.values())


def lost(texts: Mapping[str, Sequence[KernelSource]], refused: Mapping[str, str]) -> list[str]:
    """The cases all of whose kernels are refused."""
    return [case for case, found in texts.items() if {s.symbol for s in found} <= refused.keys()]


def listed(case: Case, name: str) -> list[KernelSource]:
    """The kernels that a plan lists for a call and that an architecture has the features for."""
    call, target = call_of(case), Target(CUDA, ARCHITECTURES[name])
    able = candidates(call, target.architecture)
    found = (variant for variant, _ in variants_of(call) if variant in able)
    return [emit_kernel(for_variant(call, variant), variant, target) for variant in found]


# ---- variants and launches ------------------------------------------------------------------


def test_variants_are_told_apart() -> None:
    keys = [(v.op, v.dtype, v.tile) for v in VARIANTS]
    assert len(set(keys)) == len(keys)
    assert all(v.threads % 32 == 0 and v.threads <= 1024 for v in VARIANTS)


def test_none_and_several_variants_are_refused() -> None:
    call, _, target = made(NAMED["layer (5, 768)"], "sm_80")
    with pytest.raises(
        GraphError, match=r"5 kernels compute norm on sm_80; there are 16x8 \(fits"
    ):
        find(call, target.architecture)
    with pytest.raises(GraphError, match="0 kernels compute norm on sm_80 in tiles of 9x9"):
        find(call, target.architecture, "9x9")
    with pytest.raises(GraphError, match="There is no kernel call 'unheard'"):
        emit_kernel(replace(call, op="unheard"), VARIANTS[0], target)


@given(st.integers(1, MOST), st.integers(0, MOST))
def test_division_by_a_product(d: int, n: int) -> None:
    value, multiply, shift = divisor_words(d)
    for one in (n, n // d * d, max(0, n // d * d - 1)):
        assert value == d and multiply < 1 << 32
        assert one // d == (one * multiply >> 32 + shift if multiply else one)


def at(offset: int, *dims: int) -> View:
    return View(Buffer("temp", 0), dims, (2**20,) * len(dims), offset)


def test_parameters_are_what_kernels_take() -> None:
    argument = pointer(at(3, 2), DType.F16)
    assert argument.words({}, lambda b: 4096, None) == struct.pack("<Q", 4102)
    assert pointer(None, DType.F16).words({}, lambda b: 1, None) == bytes(8)
    with pytest.raises(GraphError, match=f"more than {MOST} elements"):
        pointer(at(0, 2049), DType.F32).words({}, lambda b: 0, None)
    assert pointer(at(0, 2048), DType.F32).words({}, lambda b: 0, None) == bytes(8)


def test_launches_beyond_a_grid_are_refused() -> None:
    launch = Launch("tracea_k", ("n", 1, 1), 256, 0, ())
    assert launch.blocks({"n": 5}) == (5, 1, 1)
    with pytest.raises(GraphError, match="more than a grid has"):
        launch.blocks({"n": 2**31})
    with pytest.raises(GraphError, match="more than a grid has"):
        replace(launch, grid=(1, "n", 1)).blocks({"n": 65536})


def test_one_record_serves_every_size() -> None:
    x, y = (View(Buffer("temp", i), ("m", 40), (40, 1)) for i in (0, 1))
    call = CALLS.make("softmax", "f16", x=x, y=y)
    target = Target(CUDA, ARCHITECTURES["sm_80"])
    launch = launch_of(call, find(call, target.architecture, "4x32"), target)
    assert [launch.blocks({"m": m})[0] for m in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert struct.pack("<i", 7) in launch.words({"m": 7}, lambda b: 0)


def test_rows_whose_length_varies_have_a_kernel_for_short_ones() -> None:
    x, y = (View.dense(Buffer("temp", i), ("m", "n")) for i in range(2))
    for op, more in (("softmax", {"log": False}), ("norm", {"kind": "rms", "epsilon": 1e-5})):
        short, long = variants_of(CALLS.make(op, "f16", x=[x], y=y, **more))
        assert [v.tile for v, _ in (short, long)] == ["4x32", "1x256"]
        assert [evaluate(short[1], {"n": n}) > 0 for n in (1, 1024, 1025)] == [True, True, False]
    fixed = View.dense(Buffer("temp", 0), ("m", 768))
    assert len(variants_of(CALLS.make("softmax", "f16", x=[fixed], y=fixed, log=False))) == 1


def test_libraries_have_the_kernels_that_plans_launch() -> None:
    """Names of kernels, which libraries are made from, hold the sizes that sources depend on."""
    target = Target(CUDA, ARCHITECTURES["sm_90a"])
    for case in CASES:
        if not all(target.architecture.has(feature) for feature in case.needs):
            continue
        call, variant, _ = made(case, "sm_90a")
        chains = [call.chain] if call.chain else []
        contents = LibraryContents((), [kernel_of(call, variant)], chains)
        (found,) = sources_of(contents, ["sm_90a"])["sm_90a"]
        launched = emit_kernel(for_variant(call, variant), variant, target)
        assert found.text == launched.text, case.name
