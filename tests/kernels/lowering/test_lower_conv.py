"""Programs of convolutions: they compute what their references compute, inside their buffers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.convolutions import BF16, CASES, REGIONS, SIZES, Case
from tests.graphs import relative_error
from tests.interpreter import bind, check_lifetimes, check_views, run
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.program import Program
from tracea_graph.ops import OPS
from tracea_graph.ttg import Region, TileGraph


def program(case: Case) -> Program:
    names = [f"o{i}" for i in range(len(case.operands))]
    results = tuple(f"r{i}" for i in range(len(case.params.infer(case.specs))))
    op = next(o for o, kind in OPS if isinstance(case.params, kind))
    region = Region("region", op, tuple(names), results, (), case.params)
    specs = dict(zip(names, case.specs, strict=True))
    return lower(TileGraph([region], names, results, {}, specs), region)


def kernels(case: Case) -> list[str]:
    return [c.name for c in program(case).calls]


@pytest.mark.parametrize("sizes", [SIZES, {"n": 1, "h": 13, "w": 16}, {"n": 3, "h": 8, "w": 5}])
@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_its_reference(name: str, sizes: dict[str, int]) -> None:
    case = CASES[name]
    arrays = case.arrays(sizes)
    expected = case.params.reference([a.astype(np.float64) for a in arrays])
    results = run(program(case), arrays)
    assert len(results) == len(expected)
    for actual, want in zip(results, expected, strict=True):
        assert relative_error(actual, np.asarray(want)) < 1e-12


@pytest.mark.parametrize("name", CASES)
def test_temporaries_live_as_long_as_they_are_used(name: str) -> None:
    check_lifetimes(program(CASES[name]))


@pytest.mark.parametrize("size", [5, 6, 31, 224])
@pytest.mark.parametrize("name", CASES)
def test_no_view_leaves_its_buffer_whatever_the_sizes(name: str, size: int) -> None:
    made = program(CASES[name])
    sizes = {"n": 1, "h": size, "w": size}
    shapes = [a.shape for a in CASES[name].arrays(sizes)]
    check_views(made, bind(made, shapes))


def test_inside_a_region_nothing_is_reordered() -> None:
    assert kernels(REGIONS["residual block"]) == [
        "conv_first_layer",
        "conv",
        "conv",
        "reorder_to_nchw",
    ]
    assert kernels(REGIONS["squeeze and excite"]) == [
        "reorder_to_nchw16c", "depthwise", "global_pool", "gemm", "gemm", "elementwise",
        "zero_pad",
        "conv", "reorder_to_nchw",
    ]  # fmt: skip
    assert kernels(REGIONS["pools and a head"]) == [
        "conv_first_layer", "pool", "conv", "global_pool", "gemm",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["each image's own", "for all images"])
def test_filters_are_scaled_where_they_are_fewer_numbers(name: str) -> None:
    made = program(REGIONS[f"filters scaled in place of channels, {name}"])
    (scaled,) = [c for c in made.calls if c.name == "elementwise"]
    (target, (reader,)) = scaled.views[-1], [c for c in made.calls if c.name == "conv"][1:]
    assert target is not None and reader.views[1] is not None
    assert target.buffer == reader.views[1].buffer


def test_values_are_stored_as_their_readers_round_them() -> None:
    made = program(BF16["residual block in bf16"])
    assert [c.name for c in made.calls] == [
        "conv_first_layer_bf16", "conv_bf16", "conv_bf16", "conv_bf16", "reorder_to_nchw",
    ]  # fmt: skip
    assert sorted(t.dtype.short for t in made.temps) == ["bf16"] * 3 + ["f32"]
    assert kernels(BF16["expand, depthwise, project in bf16"]) == [
        "reorder_to_nchw16c", "elementwise", "conv_bf16", "depthwise_bf16", "conv_bf16",
        "reorder_to_nchw",
    ]  # fmt: skip
    assert kernels(BF16["squeeze and excite in bf16"]) == [
        "reorder_to_nchw16c", "elementwise", "depthwise_bf16", "elementwise", "zero_pad",
        "conv_bf16", "pool_bf16",
        "conv_bf16", "winograd_bf16", "reorder_to_nchw",
    ]  # fmt: skip


def test_chains_beside_products_of_16_bits_use_fast_math() -> None:
    def fast_math(case: Case) -> set[bool]:
        chains = [c.chain for c in program(case).calls if c.chain]
        return {chain.fast_math for chain in chains if "silu" in chain.text}

    assert fast_math(BF16["expand, depthwise, project in bf16"]) == {True}
    assert fast_math(CASES["integers, silu, residual"]) == {True}
    assert fast_math(CASES["silu, residual"]) == {False}


def test_maxima_are_stored_as_what_they_are_over() -> None:
    name = "maxima of maxima in bf16"
    assert kernels(BF16[name]) == [
        "conv_first_layer_bf16", "pool_bf16", "pool_bf16", "conv_bf16", "reorder_to_nchw",
    ]  # fmt: skip
    wanted_whole = kernels(BF16[f"{name}, whose first is wanted in float32"])
    assert [k for k in wanted_whole if k != "reorder_to_nchw"] == [
        "conv_first_layer_bf16", "pool", "pool", "elementwise", "conv_bf16",
    ]  # fmt: skip


def stored(case: Case) -> list[str]:
    """The types of what a program keeps, but for what it makes of its input."""
    made = program(case)
    return sorted(t.dtype.short for t in made.temps)


def test_what_is_moved_is_stored_as_its_reader_wants_it() -> None:
    """Written where it belongs, but for an input that is rounded; nothing is in float32."""
    cleared = ["elementwise"] * 4
    name = "a decoder with its skip"
    assert kernels(BF16[name]) == [
        "reorder_to_nchw16c", "elementwise", "conv_bf16", "pool_bf16", "conv_bf16",
        *["copy"] * 4, *cleared,
        "zero_pad", "conv_bf16", "reorder_to_nchw",
    ]  # fmt: skip
    assert stored(BF16[name]).count("f32") == 2  # the input in blocks, and what leaves
    assert kernels(BF16["slices and repeats in bf16"]) == [
        "reorder_to_nchw16c", "elementwise", "conv_bf16", "conv_bf16", "copy", "copy",
        "conv_bf16", "reorder_to_nchw",
    ]  # fmt: skip


def test_broad_blocks_are_written_as_they_are_read() -> None:
    """What is read by others is brought into them once, as is what nobody writes so."""
    start = ["reorder_to_nchw16c", "elementwise", "conv_bf16"]
    bottleneck = "a bottleneck in broad blocks"
    assert kernels(BF16[bottleneck]) == [*start, *["conv_bf16"] * 4, "reorder_to_nchw"]
    assert lanes(BF16[bottleneck]) == [32, 32, 32, 32, 16]
    name = "broad blocks that a chain writes, and that a depthwise one reads, too"
    assert kernels(BF16[name]) == [
        *start, *["conv_bf16"] * 3, "depthwise_bf16", "copy", "conv_bf16", "conv_bf16",
        "reorder_to_nchw",
        "reorder_to_nchw",
    ]  # fmt: skip
    assert lanes(BF16[name]) == [32, 32, 32, 16, 32, 16]
    names = kernels(BF16["a decoder in broad blocks"])
    assert names.count("copy") == 4 and lanes(BF16["a decoder in broad blocks"]) == [32, 32, 16]
    assert "copy" not in kernels(BF16["broad slices and repeats"])[:-4]
    name = "a concatenation in broad blocks, of one in float32 and one that is not broad"
    assert lanes(BF16[name]) == [16, 16, 16]
    assert kernels(BF16[name]).count("elementwise") == 2 and kernels(BF16[name]).count("copy") == 1


def lanes(case: Case) -> list[int]:
    """Of what the dense convolutions of a program write."""
    calls = [c for c in program(case).calls if c.name == "conv_bf16"]
    return [int(str(c.views[-1].dims[4])) for c in calls if c.views[-1] is not None]


def test_a_part_that_others_want_in_float32_is_rounded_on_its_way() -> None:
    names = kernels(BF16["a decoder with its skip, which leaves too"])
    assert names.count("pool") == 1 and names.count("copy") == 4
    assert names.count("elementwise") == 2 + 4 + 1  # two inputs of products, zeros, the skip
    whole = kernels(BF16["a decoder with its skip, both halves of which leave"])
    assert whole.count("copy") == 0 and whole.count("pool_bf16") == 1


def test_what_is_spread_and_padded_is_written_once() -> None:
    zeros = {"spread to where it is padded and cut": 2 + 1, "spread for a pad and for another": 3}
    copies = {"spread to where it is padded and cut": 8, "spread for a pad and for another": 5}
    for name, count in zeros.items():
        assert kernels(REGIONS[name]).count("elementwise") == count + copies[name]


def test_stems_may_split_numbers_beside_products_of_16_bits_alone() -> None:
    assert kernels(REGIONS["pools and a head"])[0] == "conv_first_layer"
    made = program(BF16["maxima of maxima in bf16, whose first is wanted in float32"])
    stem, *_ = made.calls
    assert stem.name == "conv_first_layer_bf16" and stem.views[-1] is not None
    assert made.temps[stem.views[-1].buffer.index].dtype.short == "f32"


def test_a_border_is_written_around_what_is_there() -> None:
    """Four sides and one below, of nothing that is inside; all of it where zeros are wanted, where
    it is a part of something else, and of an input."""
    names = kernels(REGIONS["reflected around a value that is read without it, too"])
    assert names.count("copy") == 5
    others = kernels(REGIONS["borders beside one of zeros and beside each other"])
    assert others.count("copy") == 3 * (1 + 4) + (1 + 2)


def test_what_follows_a_norm_in_blocks_writes_it() -> None:
    """Two statistics, a factor, and one chain for the norm and what is behind it."""
    names = kernels(REGIONS["an instance norm, its border, a residual"])
    assert names.count("reduce") == 4 and names.count("elementwise") == 2 + 2
    assert names.count("reorder_to_nchw") == 1 and "channel_norm" not in names
    fits_none = kernels(REGIONS["norms that no chain reads, and groups that fit no block"])
    assert fits_none.count("channel_norm") == 1


def test_parts_of_a_concatenation_are_written_where_they_belong() -> None:
    names = kernels(REGIONS["concat, split, repeat"])
    assert names.count("elementwise") == 1  # one slice that is a part already
    assert names.count("copy") == 2  # two rows repeated
    assert names.count("reorder_to_nchw16c") == names.count("reorder_to_nchw") == 1


def test_a_sum_of_values_with_channels_last_is_written_as_its_reader_wants_it() -> None:
    names = kernels(REGIONS["channels last before convolutions"])
    assert names == [
        "norm", "reorder_to_nchw16c", "depthwise", "reorder_to_nchw", "norm", "elementwise",
        "zero_pad", "depthwise",
        "reorder_to_nchw",
    ]  # fmt: skip


def test_what_follows_a_sum_is_done_in_registers() -> None:
    (call,) = [c for c in program(CASES["residual, relu"]).calls if c.name == "conv"]
    bounds = call.attributes["low"], call.attributes["high"]
    assert call.chain is None and bounds == (0.0, np.inf) and call.views[3] is not None
    (call,) = [c for c in program(CASES["residual, silu"]).calls if c.name == "conv"]
    assert call.chain is not None and call.chain.operands == ("full",)
    (call,) = [c for c in program(CASES["silu, residual"]).calls if c.name == "conv"]
    assert call.chain is not None and call.views[3] is None
