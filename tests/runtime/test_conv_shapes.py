"""Every class of convolution by every layout that takes it, as whole programs of symbolic sizes.

Kernels 1 to 11, strides and dilations 1 to 3, one group, four, or one per channel, channels that
fill blocks and that do not, sizes 1 to 17 and primes, uneven padding; float32, bf16 and integers.
A sample runs by default, all of them with ``-m slow``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from convolutions import Bias, Filters, Scales
from convolutions import Case as Operation
from graphs import normal
from runtime.answers import Answers, assert_threads_agree
from runtime.support import Case

from tracea_graph.config import TOLERANCE
from tracea_graph.hardware import profile_cpu
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import BLOCK, IN_INT16, IN_PAIRS
from tracea_graph.ops.windows import Window
from tracea_graph.passes.lowering.lower import lower
from tracea_graph.ttg import Region, TileGraph

CALLS = (
    "conv", "conv_stem", "depthwise", "winograd", "conv_plain", "block", "unblock", "elementwise",
    "halo", "gemm", "copy",
)  # fmt: skip
LOW_CALLS = (
    *CALLS, "conv_bf16", "depthwise_bf16", "winograd_bf16", "conv_int16", "winograd_int16",
    "round_images",
)  # fmt: skip
CLASSES = tuple(
    itertools.product(range(1, 12), (1, 2, 3), (1, 2, 3), ("one", "four", "each"),
                      (1, 3, 7, 16, 24, 33))
)  # fmt: skip
SIZES = (*range(1, 18), 19, 23, 29, 31, 37)
SAMPLE = 90
ROUGH = {"winograd4": 5e-5, "winograd2_pairs": 2.0**-7, "winograd2_int16": 2.0**-9}
"""Of max|y|, where it is not the tolerance of all kernels: Winograd's F(4 x 4), and F(2 x 2) whose
transformed numbers are rounded to bf16 or to integers."""


def layouts(p: ConvParams) -> Iterator[str]:
    """All that can hold these filters."""
    yield "plain"
    if p.groups == 1:
        yield "stem" if p.channels < BLOCK // 2 else "blocked"
        if p.transformable:
            yield from ("winograd2", "winograd4")
    elif p.groups == p.channels == p.filters:
        yield "depthwise"
    elif p.channels // p.groups % BLOCK == 0 and p.filters // p.groups % BLOCK == 0:
        yield "blocked"


def operations(chosen: tuple[object, ...], chance: random.Random) -> Iterator[Operation]:
    """One class in all its layouts."""
    kernel, stride, dilation, grouping, count = chosen
    assert isinstance(kernel, int) and isinstance(stride, int) and isinstance(dilation, int)
    assert isinstance(count, int)
    groups = {"one": 1, "four": 4, "each": count}[str(grouping)]
    channels = 4 * count if grouping == "four" else count
    filters = channels if grouping == "each" else groups * chance.choice((1, 3, 16, 24, 33))
    sides = [chance.choice((kernel, kernel, 1, kernel + 1)) for _ in range(2)]
    reach = max((side - 1) * dilation for side in sides)
    pads = tuple(chance.randint(0, reach) for _ in range(4))
    if sides == [3, 3] and stride == dilation == 1:
        pads = (1, 1, 1, 1)
    window = Window((sides[0], sides[1]), (stride,) * 2, (dilation,) * 2, pads)
    plain = ConvParams(channels, filters, window, groups, bias=chance.random() < 0.7)
    for layout in layouts(plain):
        for stored, low in precisions(layout, channels):
            if stored != layout and grouping == "four":
                continue
            params = ConvParams(channels, filters, window, groups, stored, plain.bias, in_bf16=low)
            held = Filters(params.shape, stored)
            bias = (Bias(filters) if layout != "plain" else (filters,),) if plain.bias else ()
            scales = (Scales(held),) if params.in_int16 else ()
            yield Operation(params, (("n", channels, "h", "w"), held, *bias, *scales))


def precisions(layout: str, channels: int) -> Iterator[tuple[str, bool]]:
    """The layout and its like in bf16 and in integers; and whether that is bf16."""
    yield layout, False
    if layout == "depthwise":
        yield layout, True
    for stored, plain in (*IN_PAIRS.items(), *IN_INT16.items()):
        if plain == layout and (stored in IN_INT16 or channels % 2 == 0):
            yield stored, stored in IN_PAIRS


def case(operation: Operation, chance: random.Random) -> Case | None:
    """The operation on an image of random size; None where no window fits into it."""
    params = operation.params
    assert isinstance(params, ConvParams)
    sizes = {"n": chance.choice((1, 1, 2)), "h": chance.choice(SIZES), "w": chance.choice(SIZES)}
    arrays = operation.arrays(sizes)
    arrays[0] = normal(*arrays[0].shape, seed=7)
    if min(params.window.sizes(arrays[0].shape[2:])) < 1:  # type: ignore[type-var]
        return None
    names = [f"o{i}" for i in range(len(arrays))]
    region = Region("region", "FusedConv", tuple(names), ("y",), (), params)
    specs = dict(zip(names, operation.specs, strict=True))
    program = lower(TileGraph([region], names, ("y",), {}, specs), region)
    (wanted,) = params.reference([np.asarray(a, np.float64) for a in arrays])
    w = params.window
    words = (params.layout, "bf16" if params.in_bf16 else "f32", params.channels, params.filters,
             params.groups, *w.kernel, w.strides[0], w.dilations[0], *w.pads, *sizes.values(),
             params.bias)  # fmt: skip
    return Case("_".join(map(str, words)), program, tuple(arrays), (wanted,))


def cases(classes: Sequence[tuple[object, ...]]) -> list[Case]:
    chance = random.Random(1)
    made = (case(o, chance) for one in classes for o in operations(one, chance))
    return [c for c in made if c is not None]


def check(answers: Answers) -> None:
    """All cases at all levels; names every one that is off."""
    wrong = []
    for level in answers.levels:
        found = answers(level)
        for name, one in answers.cases.items():
            got, (wanted,) = found[name], one.expected
            if not isinstance(got, tuple) or got[0].shape != wanted.shape:
                wrong.append(f"{level} {name}: {got if isinstance(got, str) else 'its shape'}")
                continue
            layout = name.split("_bf16_")[0].split("_f32_")[0]
            limit = ROUGH.get(layout, TOLERANCE.kernel_f32)
            error = np.abs(got[0] - wanted).max(initial=0) / max(
                np.abs(wanted).max(initial=0), 1e-3
            )
            if not error <= limit:
                wrong.append(f"{level} {name}: {error:.1e}")
    assert not wrong, "\n".join(wrong[:20])


def both(
    classes: Sequence[tuple[object, ...]], folders: pytest.TempPathFactory
) -> Iterator[Answers]:
    """The cases in float32, and those in bf16 and integers with the levels these have."""
    made = cases(classes)
    low = [c for c in made if "_bf16_" in c.name or "int16" in c.name]
    yield Answers([c for c in made if c not in low], CALLS, (), profile_cpu().isas, folders)
    yield Answers(low, LOW_CALLS, (), profile_cpu().levels("bf16"), folders)


def test_a_sample_of_all_classes(tmp_path_factory: pytest.TempPathFactory) -> None:
    for answers in both(random.Random(2).sample(CLASSES, SAMPLE), tmp_path_factory):
        assert len(answers.cases) > SAMPLE // 4
        check(answers)
        assert_threads_agree(answers)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", range(1, 12))
def test_all_classes(kernel: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    classes = [one for one in CLASSES if one[0] == kernel]
    for answers in both(classes, tmp_path_factory):
        check(answers)
        assert_threads_agree(answers)
