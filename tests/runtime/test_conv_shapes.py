"""Every class of convolution by every layout that takes it, as whole programs of symbolic sizes.

Kernels 1 to 11, strides and dilations 1 to 3, one group, four, or one per channel, channels that
fill blocks and that do not, sizes 1 to 17 and primes, uneven padding, what follows the sum; over
two axes, and over one and three; float32, bf16 and integers.  By default a table in which any two
of these properties meet, all of them with ``-m slow``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.convolutions import (
    ADD_RELU,
    CLIP_MUL,
    PRELU,
    SILU,
    Bias,
    Filters,
    Scales,
    either,
    laid_out,
)
from tests.convolutions import Case as Operation
from tests.pairwise import pairwise
from tests.runtime.answers import assert_threads_agree
from tests.runtime.shapes import by_precision, named_errors
from tests.runtime.support import Case, operator_case
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.filters import (
    BLOCK,
    LAYOUTS,
    Int16Filters,
    Vnni2Filters,
    transformable,
)
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.passes.convolution.conv import channel_kind

COUNTS = (1, 3, 7, 16, 24, 32, 33)
SIZES = (*range(1, 18), 19, 23, 29, 31, 37)
FLAT = (*range(1, 8), 11)
"""Sizes over three axes."""
POST_OPS = {
    "none": (None, ()),
    "silu": (SILU, ()),
    "residual": (ADD_RELU, ("full",)),
    "prelu": (PRELU, ("row",)),
    "clamped": (CLIP_MUL, ("full", "row", "scalar")),
}
FACTORS = {
    "kernel": (1, 2, 3, 5, 7, 11),
    "stride": (1, 2, 3),
    "dilation": (1, 2, 3),
    "grouping": ("one", "four", "each"),
    "count": COUNTS,
    "filters": COUNTS,
    "post_ops": tuple(POST_OPS),
}
FAST_MATH = {"winograd4": 5e-5, "winograd2_vnni2": 2.0**-6, "winograd2_int16": 2.0**-9}
"""Of max|y|, where it is not the tolerance of all kernels: Winograd's F(4 x 4), and F(2 x 2) whose
transformed numbers are rounded to bf16 or to integers."""


class Class(NamedTuple):
    """``count`` and ``filters`` are of one group of one or four."""

    kernel: int
    stride: int
    dilation: int
    grouping: str
    count: int
    filters: int
    post_ops: str
    rank: int = 2

    @property
    def channels(self) -> int:
        return 4 * self.count if self.grouping == "four" else self.count

    @property
    def groups(self) -> int:
        return {"one": 1, "four": 4, "each": self.count}[self.grouping]


def few() -> list[Class]:
    """Any two properties meet; all that Winograd's transform can do; some of other ranks."""
    table = [Class(**row) for row in pairwise(FACTORS)]
    post_ops = itertools.cycle(POST_OPS)
    square = [
        Class(3, 1, 1, "one", c, o, next(post_ops))
        for c, o in zip(COUNTS, reversed(COUNTS), strict=True)
    ]
    others = [one._replace(rank=1) for one in table[::4]]
    return [*table, *square, *others, *(one._replace(rank=3) for one in table[::9])]


def every(kernel: int) -> Iterator[Class]:
    """All classes of a kernel; filters and what follows in turn."""
    filters, post_ops = itertools.cycle(COUNTS), itertools.cycle(POST_OPS)
    steps = itertools.product((1, 2, 3), (1, 2, 3), ("one", "four", "each"), COUNTS)
    for i, step in enumerate(steps):
        if i % len(COUNTS) == 0:
            next(filters)  # not the same beside each count again
        one = Class(kernel, *step, next(filters), next(post_ops))
        yield from (
            one._replace(rank=rank) for rank in (2, *(1,) * (i % 3 == 0), *(3,) * (i % 9 == 0))
        )


class Sizes:
    """Every size in turn, in another order each time."""

    def __init__(self, sizes: Sequence[int], chance: random.Random) -> None:
        self._sizes, self._chance, self._left = sizes, chance, list[int]()

    def __call__(self) -> int:
        if not self._left:
            self._left = self._chance.sample(self._sizes, len(self._sizes))
        return self._left.pop()


def layouts(p: ConvParams) -> Iterator[str]:
    """All that can hold these filters."""
    yield "plain"
    if p.window.rank > 2:
        return
    if p.groups == 1:
        yield "blocked"
        if p.channels < BLOCK // 2:
            yield "first_layer"
        if transformable(p.window, p.groups):
            yield from ("winograd2", "winograd4")
    elif p.groups == p.channels == p.filters:
        yield "depthwise"
    elif p.channels // p.groups % BLOCK == 0 and p.filters // p.groups % BLOCK == 0:
        yield "blocked"


def precisions(layout: str, channels: int, groups: int) -> Iterator[tuple[str, bool]]:
    """The layout and its like in bf16 and in integers; and whether that is bf16."""
    yield layout, False
    if layout == "depthwise":
        yield layout, True
    if layout == "blocked":
        yield "bf16x2", False
    whole = groups == 1 and channels % (2 * BLOCK) == 0
    if layout == "blocked" and whole:
        yield "nchw32c", True
    for stored in LAYOUTS.values():
        if not isinstance(stored, Vnni2Filters | Int16Filters) or stored.of.name != layout:
            continue
        if isinstance(stored, Int16Filters) or channels % 2 == 0:
            yield stored.name, stored.rounds


class Maker:
    """Programs of a list of classes, each in all its layouts, over images of all sizes."""

    def __init__(self, classes: Sequence[Class]) -> None:
        self._chance = random.Random(1)
        self._sides = [Sizes(SIZES, self._chance) for _ in range(2)]
        self._flat = Sizes(FLAT, self._chance)
        self.made = [case for one in classes for case in self._cases(one)]

    def _cases(self, one: Class) -> Iterator[Case]:
        sizes, window = self._window(one)
        yield from self._stored(one, sizes, window)
        if one[:4] == (3, 1, 1, "one") and one.rank == 2:
            yield from self._stored(one, sizes, ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)))

    def _window(self, one: Class) -> tuple[list[int], ConvWindow]:
        """An image, and a window that fits into it once at least."""
        chance, rank = self._chance, one.rank
        large = chance.randrange(rank)
        sides = [chance.choice((one.kernel, one.kernel, 1, one.kernel + 1)) for _ in range(rank)]
        sides[large] = one.kernel
        if rank == 3:  # a cube of them takes the reference long
            sides = [s if i == large else min(s, 3) for i, s in enumerate(sides)]
        strides = [chance.choice((one.stride, one.stride, 1, 2)) for _ in range(rank)]
        dilations = [chance.choice((one.dilation, one.dilation, 1, 2)) for _ in range(rank)]
        strides[large], dilations[large] = one.stride, one.dilation
        sizes = [self._flat() if rank == 3 else self._sides[i]() for i in range(rank)]
        pads = []
        for size, side, dilation in zip(sizes, sides, dilations, strict=True):
            reach = (side - 1) * dilation
            missing = max(0, reach + 1 - size)
            before = chance.randint(max(0, missing - reach), reach)
            pads.append((before, chance.randint(max(0, missing - before), reach)))
        return sizes, ConvWindow(tuple(sides), tuple(strides), tuple(dilations),
                             (*(p[0] for p in pads), *(p[1] for p in pads)))  # fmt: skip

    def _stored(self, one: Class, sizes: list[int], window: ConvWindow) -> Iterator[Case]:
        channels, groups = one.channels, one.groups
        chain, kinds = POST_OPS[one.post_ops]
        twice = one.grouping == "each" and self._chance.random() < 0.2  # two filters a channel
        filters = channels * (1 + twice) if one.grouping == "each" else groups * one.filters
        bias = self._chance.random() < 0.7
        x = ("n", channels, *("d", "h", "w")[-one.rank :])
        result = ConvParams(channels, filters, window, groups).infer([TensorSpec(DType.F32, x)])[0]
        each = (("n",) if self._chance.random() < 0.3 else ()) + (filters, *(1,) * one.rank)
        epilogue_inputs = [
            {"full": result.shape, "row": each, "scalar": (1,)}[kind] for kind in kinds
        ]
        if chain:
            lie = (channel_kind(TensorSpec(DType.F32, shape), result) for shape in epilogue_inputs)
            chain = replace(chain, operands=("full", *lie))  # one channel's number is a scalar
        plain = ConvParams(channels, filters, window, groups, bias=bias, epilogue=chain)
        images = {"n": self._chance.choice((1, 1, 2)), **dict(zip(x[2:], sizes, strict=True))}
        for layout in layouts(plain):
            for stored, low in precisions(layout, channels, groups):
                params = laid_out(channels, filters, window, groups, stored, bias, chain, low)
                held = Filters(params.shape, stored)
                offsets = (Bias(filters) if layout != "plain" else (filters,),) if bias else ()
                scales = (Scales(held),) if params.layout.operands > 1 else ()
                whole = Operation(params, (x, held, *offsets, *epilogue_inputs, *scales))
                yield self._case(whole, images)
                if stored in LAYOUTS and LAYOUTS[stored].direct:
                    yield self._case(either(whole), images)

    def _case(self, operation: Operation, images: dict[str, int]) -> Case:
        params = operation.params
        assert isinstance(params, ConvParams)
        w, kind = params.window, "bf16" if params.layout.rounds else "f32"
        words = (params.layout.name, kind, params.channels, params.filters, params.groups,
                 *w.kernel, "s", *w.strides, "d", *w.dilations, "p", *w.pads, "of",
                 *images.values(), len(operation.operands),
                 self._chance.randrange(10**9))  # fmt: skip
        return operator_case(
            "_".join(map(str, words)), "FusedConv", params, operation.specs,
            operation.arrays(images),
        )  # fmt: skip


def check(
    classes: Sequence[Class], folders: pytest.TempPathFactory, *, every_level: bool = False
) -> None:
    """All cases are right, and one thread gives the bits of two."""
    made = Maker(classes).made
    for answers in by_precision(made, in_few_bits, folders, every_level=every_level):
        wrong = named_errors(answers, lambda c: FAST_MATH.get(layout_of(c.name), c.tolerance))
        assert not wrong, "\n".join(wrong[:20])
        assert_threads_agree(answers)


def in_few_bits(case: Case) -> bool:
    return "_bf16_" in case.name or layout_of(case.name) == "bf16x2" or "int16" in case.name


def layout_of(name: str) -> str:
    return name.split("_bf16_")[0].split("_f32_")[0]


def test_the_table_holds_what_it_says() -> None:
    """Any two values meet, every layout and every size is there, and no window lies outside."""
    classes = few()
    for a, b in itertools.combinations(FACTORS, 2):
        met = {(getattr(one, a), getattr(one, b)) for one in classes if one.rank == 2}
        assert met >= set(itertools.product(FACTORS[a], FACTORS[b])), (a, b)
    cases = Maker(classes).made
    assert {layout_of(case.name) for case in cases} == {*LAYOUTS, "plain"} - {"panels"}
    assert all(min(case.expected[0].shape) > 0 for case in cases)
    flat = [case.feeds[0].shape for case in cases if case.feeds[0].ndim == 4]
    assert all({shape[axis] for shape in flat} == set(SIZES) for axis in (2, 3))


def test_any_two_properties(tmp_path_factory: pytest.TempPathFactory) -> None:
    check(few(), tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", range(1, 12))
def test_all_classes(kernel: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(list(every(kernel)), tmp_path_factory, every_level=True)
