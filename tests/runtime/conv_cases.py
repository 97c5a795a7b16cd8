"""The convolutions and poolings the runtime is tested with."""

from __future__ import annotations

import itertools
from functools import cache

from tests.runtime.blocked import (
    ALONG,
    CHAINS,
    EPILOGUES,
    GATED,
    NO_HALO,
    PER_CHANNEL,
    RESIDUAL,
    SCALED,
    SILU,
    Halo,
)
from tests.runtime.conv_calls import conv, depthwise, driven, stem
from tests.runtime.conv_moves import (
    border,
    channel_shuffle,
    global_pool,
    plain,
    pool,
    resize,
    turn,
)
from tests.runtime.support import Case
from tracea_graph.kernels.cpu.schedule import ConvSchedule

__all__ = [
    "CHAINS", "CUTS", "all_conv_cases", "conv", "depthwise", "plain", "pool", "stem", "turn",
]  # fmt: skip


def same(kernel: int, dilation: int = 1) -> Halo:
    """Uneven padding that keeps a size at stride 1."""
    whole = (kernel - 1) * dilation
    return (whole // 2, whole - whole // 2, whole - whole // 2, whole // 2)


def dense_cases() -> list[Case]:
    counts = (1, 3, 7, 16, 24, 33)
    sizes = [*range(1, 18), 19, 23, 29, 31]
    cases = [conv(33, 40, (1, w)) for w in sizes]  # every tail of a flat line
    cases += [
        conv(16, 24, (h, w), (3, 3), pad=same(3), halo=(1, 1, 1, 1))
        for h, w in ((1, 1), (2, 3), (3, 2), (5, 6), (7, 7), (4, 7), (6, 4), (9, 8), (3, 29))
    ]
    cases += [
        conv(i, o, (5, 6), (3, 3), pad=same(3)) for i, o in itertools.product(counts, counts)
    ]
    cases += [conv(16, 16, (13, 12), (k, k), pad=same(k)) for k in range(1, 12)]
    cases += [
        conv(24, 33, (11, 17), (k, k), (s, s), (d, d), pad=same(k, d), halo=(0, 1, 2, 3))
        for k, s, d in itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2, 3))
    ]
    cases += [
        conv(64, 96, (6, 5), (3, 1), (1, 2), (2, 1), (2, 0, 2, 0), groups=2),
        conv(64, 64, (5, 5), (3, 3), pad=same(3), groups=4, batch=3),
        conv(64, 192, (4, 9), groups=4),
        conv(48, 40, (7, 7), (1, 1), (2, 2), bias=False),
        conv(33, 40, (9, 15), batch=2, add=True, clamp=(0, 1)),
        conv(33, 40, (9, 15), (3, 3), pad=same(3), add=True, clamp=(0, 6), halo=(1, 1, 1, 1)),
        conv(33, 40, (7, 7), (3, 3), pad=same(3), add=True, clamp=(0, 6), halo=(1, 1, 1, 1)),
        conv(700, 40, (7, 7), (3, 3), pad=same(3), add=True, halo=(0, 0, 1, 2)),  # sum in parts
        conv(24, 40, (5, 6), batch=3, each=True, clamp=(0, 6)),
        conv(33, 20, (4, 3), (3, 3), pad=same(3), batch=2, each=True, add=True),
        conv(64, 160, (40, 80), batch=2, chain=SILU),  # bands
        conv(64, 80, (56, 50), (3, 3), pad=same(3), chain=RESIDUAL, halo=(1, 1, 1, 1)),
        conv(1, 20, (3, 1000), (1, 7), pad=(0, 3, 0, 3)),
    ]  # fmt: skip
    for chain, halo in itertools.product(EPILOGUES, (NO_HALO, (1, 0, 2, 1))):
        cases.append(conv(24, 33, (5, 9), batch=2, chain=chain, halo=halo))
        cases.append(conv(24, 33, (6, 7), (3, 3), pad=same(3), chain=chain, halo=halo, add=True))
    # Lines that are joined, with rows of zeros above and below.
    cases += [conv(24, 33, (5, 9), batch=2, chain=chain, halo=(2, 0, 1, 0)) for chain in EPILOGUES]
    return cases


CUTS = (
    ConvSchedule(ow_tile=5, oh_tile=1, ic_block=1, h_tasks=3, oc_chunk=1),
    ConvSchedule(ow_tile=64, ic_block=1 << 24, h_tasks=1 << 24, oc_chunk=1 << 24),
    ConvSchedule(1, h_tasks=1),
    ConvSchedule(ow_tile=1, h_tasks=2),
)


def cut_cases() -> list[Case]:
    """Schedules of a plan, sensible and not, alone and by the number of images."""
    cases: list[Case] = []
    for schedules in (
        *((cut,) for cut in CUTS),
        (ConvSchedule(1, ow_tile=3), ConvSchedule(h_tasks=2)),
    ):
        cases += [
            conv(70, 40, (7, 6), (3, 3), pad=same(3), add=True, batch=2, chain=SILU,
                 halo=(0, 0, 1, 2), schedules=schedules),
            conv(40, 130, (9, 15), batch=2, clamp=(0, 6), schedules=schedules),
            conv(64, 96, (6, 5), (3, 1), (1, 2), (2, 1), (2, 0, 2, 0), groups=2,
                 schedules=schedules),
        ]  # fmt: skip
        cases += [conv(24, 33, (13, 9), (3, 3), pad=same(3), m=m, batch=2,
                       schedules=schedules)
                  for m in (2, 4)]  # fmt: skip
    return cases


def narrow_cases() -> list[Case]:
    """Few output channels: every number of them, every tail of channels and lines."""
    cases = [
        conv(c, o, (3, 29), (3, 3), pad=same(3)) for c in (9, 16, 23, 48) for o in range(1, 9)
    ]
    cases += [conv(33, 3, (2, w), (3, 3), pad=same(3)) for w in (*range(1, 18), 31)]
    cases += [
        conv(24, 2, (9, 11), (k, k), (s, s), (d, d), pad=same(k, d), halo=(0, 1, 2, 3))
        for k, s, d in ((1, 1, 1), (5, 2, 1), (9, 1, 1), (3, 3, 2))
    ]
    cases += [
        conv(64, 1, (60, 70), batch=2, add=True, clamp=(0, 1)),
        conv(32, 3, (40, 50), (3, 3), pad=same(3), batch=2, bias=False),
        conv(16, 4, (1, 200), (1, 7), pad=(0, 3, 0, 3), add=True, halo=(1, 1, 1, 1)),
    ]
    cases += [
        conv(40, 3, (6, 7), (3, 3), pad=same(3), chain=chain, halo=(1, 0, 2, 1), add=True)
        for chain in EPILOGUES
    ]
    return cases


def winograd_cases() -> list[Case]:
    sizes = ((1, 1), (2, 5), (4, 4), (7, 7), (13, 9), (17, 16))
    cases = [conv(24, 33, size, (3, 3), pad=same(3), m=m) for m in (2, 4) for size in sizes]
    cases += [
        conv(7, 48, (8, 8), (3, 3), pad=same(3), m=m, batch=2, add=True, clamp=(0, 6),
             chain=SCALED, halo=(1, 1, 1, 1)) for m in (2, 4)
    ]  # fmt: skip
    cases += [conv(32, 32, (60, 60), (3, 3), pad=same(3), m=m, chain=SILU) for m in (2, 4)]
    sizes = ((1, 1), (1, 2), (3, 3), (2, 7), (6, 6), (9, 17), (16, 16), (20, 31), (60, 60))
    cases += [
        conv(c, 40, size, (3, 3), pad=same(3), m=m, either=True, batch=batch, **more)
        for (c, m), size in itertools.product(((24, 2), (24, 4), (60, 4)), sizes)
        for batch, more in ((1, {}), (2, {"add": True, "chain": SILU, "halo": (1, 0, 2, 1)}))
    ]
    return cases


def left_out_cases() -> list[Case]:
    """Kernels wider than what they see: taps that meet nothing but zeros."""
    wide = ((1, 1), (1, 5), (2, 2), (5, 1), (3, 8), (12, 13))
    cases = [
        conv(24, 40, size, (3, 3), (s, s), (d, d), pad=same(3, d))
        for size, s, d in itertools.product(wide, (1, 2), (1, 2, 6))
    ]
    cases += [conv(16, 24, size, (7, 5), pad=(3, 2, 3, 2), batch=2) for size in wide]
    cases += [  # what is wanted lies behind, before, or nowhere
        conv(16, 24, (2, 2), (3, 3), pad=pad)
        for pad in ((0, 0, 9, 5), (9, 5, 0, 0), (1, 0, 7, 2), (4, 4, 0, 0))
    ]
    cases.append(conv(16, 24, (1, 1), (1, 1), (2, 2), pad=(1, 1, 1, 1)))
    cases.append(conv(16, 24, (1, 1), (3, 3), (3, 3), pad=(2, 2, 3, 3)))
    return cases


def other_cases() -> list[Case]:
    counts = (1, 3, 7, 16, 24, 33)
    cases = [
        depthwise(24, (9, w), (k, k), (s, s), pad=same(k), halo=(1, 1, 0, 0))
        for k, s, w in itertools.product((1, 3, 5, 7), (1, 2, 3), (1, 4, 6, 8, 15, 31))
        if w >= s
    ]
    cases += [depthwise(c, (6, 7), (3, 3), dilation=(2, 3), pad=(2, 3, 2, 3)) for c in counts]
    cases += [  # windows that lie beside the line altogether
        depthwise(16, (4, w), (3, k), (1, s), pad=(1, left, 1, right))
        for k, s, w in itertools.product((3, 5, 7), (1, 2), (4, 20))
        for left, right in ((k, 0), (0, k), (k + 8, k + 9))
    ]
    cases += [  # columns of zeros beside the line, some of them stored
        depthwise(16, (4, w), (3, k), (s, s), pad=(1, k - 1, 1, 2), stored=stored)
        for k, s, w, stored in itertools.product((3, 5, 7), (1, 2), (5, 17), (0, 1, 9))
    ]
    cases += [depthwise(16, (12, 13), (k, k), pad=same(k)) for k in range(1, 12)]
    cases += [
        depthwise(33, (7, 7), (3, 3), pad=same(3), chain=chain, batch=2, add=True, clamp=(0, 6))
        for chain in EPILOGUES
    ]
    cases += [depthwise(40, (60, 60), (5, 5), (2, 2), pad=same(5), chain=SILU)]
    cases += [
        driven(depthwise(40, (19, 23), (3, 3), pad=same(3), batch=2), (schedule,))
        for schedule in (ConvSchedule(h_tasks=4), ConvSchedule(h_tasks=2, oc_chunk=3))
    ]
    cases += [
        stem(c, o, (10, 11), (k, k), (s, s), pad=same(k), nhwc=c == 3, halo=(1, 1, 1, 1))
        for c, o, k, s in itertools.product((1, 3), (24, 33), (1, 3, 7), (1, 2, 3))
    ]
    cases += [
        stem(3, 32, (33, 64), (3, 3), (2, 2), pad=(0, 0, 1, 1), batch=2, clamp=(0, 6)),
        stem(7, 16, (5, 3), (5, 5), dilation=(2, 3), pad=(4, 6, 4, 6), add=True, chain=SCALED),
        stem(3, 40, (2, 2), (11, 11), (4, 4), pad=(5, 5, 5, 5), chain=GATED),
        stem(2, 16, (1, 50), (1, 8), (1, 4), pad=(0, 4, 0, 4)),
        # small images within zeros: lines by twos and one left over, half a block, none to copy
        stem(1, 24, (49, 10), (10, 4), (2, 2), pad=(5, 1, 5, 1), batch=2, clamp=(0, 6)),
        stem(1, 40, (9, 7), (3, 3), pad=(1, 1, 1, 1), add=True, halo=(1, 2, 3, 4)),
        stem(2, 8, (6, 5), (2, 3), chain=SCALED),
        stem(3, 24, (7, 6), (3, 3), (1, 2), (2, 1), pad=(2, 0, 2, 3), nhwc=True),
        stem(3, 33, (70, 70), (3, 3), pad=(1, 1, 1, 1)),
        stem(1, 17, (1, 3), (1, 3), pad=(0, 1, 0, 1)),
    ]
    cases += [
        pool(kind, c, (h, w), (k, k), (s, s), pad=pad, halo=(1, 1, 1, 1))
        for kind in (0, 1, 2)
        for c, h, w, k, s, pad in (
            (24, 7, 9, 3, 2, (1, 1, 1, 1)), (16, 1, 1, 1, 1, NO_HALO), (3, 8, 8, 2, 2, NO_HALO),
            (33, 5, 17, 5, 1, (2, 2, 2, 2)), (7, 11, 13, 3, 3, (0, 1, 2, 1)),
        )
    ]  # fmt: skip
    cases += [pool(kind, 16, (9, 9), (2, 3), (1, 2), (3, 2), (1, 2, 1, 2)) for kind in (0, 1, 2)]
    cases += [global_pool(kind, c, (3, 7)) for kind in (0, 1) for c in counts]
    cases += [
        resize(how, c, size, sizes=(9, 13), halo=halo)
        for how, c, size, halo in itertools.product(
            ("half_pixel", "align_corners", "pytorch_half_pixel"), (3, 33), ((4, 5), (1, 20)),
            (NO_HALO, (1, 2, 3, 1)),
        )
    ]  # fmt: skip
    cases += [
        resize("half_pixel", 24, (3, 150), scales=(2.0, 2.0), halo=(1, 1, 1, 1)),
        resize("asymmetric", 16, (5, 7), scales=(3.0, 1.5)),
        resize("nearest", 24, (5, 7), sizes=(11, 13), halo=(1, 2, 3, 1)),
        resize("nearest", 16, (40, 300), sizes=(13, 131)),
        resize("half_pixel", 16, (40, 30), scales=(0.3, 0.7)),
        resize("align_corners", 16, (5, 7), sizes=(1, 1)),
        resize("pytorch_half_pixel", 16, (5, 7), sizes=(1, 20)),
    ]
    cases += [
        channel_shuffle(parts, groups, bounds, size, halo)
        for (parts, groups, bounds), size, halo in itertools.product(
            (
                ((20, 12), 1, (0, 32)), ((20, 12), 2, (0, 16)), ((58, 58), 2, (58, 116)),
                ((24,), 8, (5, 23)), ((7, 9, 16, 1, 3), 6, (1, 35)), ((40,), 10, (0, 40)),
            ),
            ((1, 1), (5, 17)), (NO_HALO, (1, 2, 3, 1)),
        )
    ]  # fmt: skip
    cases += [
        turn(c, size, nhwc, back, halo)
        for c, size, nhwc, back, halo in itertools.product(
            (1, 16, 24, 33), ((1, 1), (3, 17)), (False, True), (False, True),
            (NO_HALO, (1, 2, 3, 1)),
        )
    ]  # fmt: skip
    return [*cases, border(24, (5, 6), (1, 2, 3, 0)), border(16, (1, 1), NO_HALO)]


def plain_cases() -> list[Case]:
    cases = [
        plain(c, o, (n,), (k,), (s,), (d,), (k // 2,), groups)
        for c, o, n, k, s, d, groups in (
            (1, 1, 5, 1, 1, 1, 1), (3, 7, 40, 3, 1, 1, 1), (6, 4, 33, 5, 3, 2, 2),
            (8, 8, 100, 11, 2, 1, 8), (5, 10, 17, 2, 1, 3, 5),
        )
    ]  # fmt: skip
    cases += [
        plain(c, o, (h, w), (k, k), (s, 1), (1, d), (1, k // 2), groups)
        for c, o, h, w, k, s, d, groups in (
            (3, 8, 9, 31, 3, 1, 1, 1), (12, 12, 7, 7, 3, 2, 1, 12), (24, 12, 5, 40, 1, 1, 1, 4),
            (4, 6, 13, 11, 5, 3, 2, 2),
        )
    ]  # fmt: skip
    cases += [plain(4, 6, (5, 6, 7), (3, 2, 3), (1, 2, 2), (1, 1, 2), (1, 0, 2), 2)]
    cases += [  # short lines are joined
        plain(4, 19, (2, 40, 12), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
        plain(8, 24, (45, 7), (3, 3), (1, 1), (2, 1), (2, 1), 2, chain=PER_CHANNEL),
        plain(2, 3, (3, 47), (1, 5), (1, 1), (1, 3), (0, 6)),
    ]
    cases += [plain(3, 9, (6, 20), (3, 3), (1, 1), (1, 1), (1, 1), chain=PER_CHANNEL)]
    cases += [plain(3, 9, (21,), (3,), (1,), (1,), (1,), 3, False, ALONG)]
    return cases


@cache
def all_conv_cases() -> tuple[Case, ...]:
    cases = [*dense_cases(), *narrow_cases(), *cut_cases(), *winograd_cases()]
    cases += left_out_cases()
    cases += [*other_cases(), *plain_cases()]
    return tuple({case.name: case for case in cases}.values())
