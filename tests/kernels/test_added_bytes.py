"""Sums of two quantized numbers in two multiply-adds give every byte that the chain gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.conv_integer_cases import RESIDUAL, ROUNDED_TWICE
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.added_bytes import NOTHING_ADDED, AddedBytes, added_bytes
from tracea_graph.ops.chain import Chain, Step


def scaled(first: float, second: float, result: float) -> Chain:
    """The chain with other scales."""
    steps = list(ROUNDED_TWICE.steps)
    for at, scale in ((4, first), (6, second), (8, result)):
        steps[at] = Step(steps[at].op, (steps[at].args[0], scale))
    return replace(ROUNDED_TWICE, steps=tuple(steps))


def every_pair(made: AddedBytes) -> tuple[np.ndarray, np.ndarray]:
    q, r = np.meshgrid(np.arange(made.low, made.high + 1), np.arange(256.0), indexing="ij")
    return q.ravel().astype(np.float32), r.ravel().astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_every_pair_of_bytes_gives_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = scaled(*map(float, rng.uniform(0.02, 0.12, 3).astype(np.float32)))
    made = added_bytes(chain)
    assert made is not None
    q, r = every_pair(made)
    first = (q * np.longdouble(made.times) + np.longdouble(made.offset)).astype(np.float32)
    both = (r * np.longdouble(made.added_times) + first).astype(np.float32)
    # a factor of 1 and a summand of q: what the chain rounds first is q
    (wanted,) = chain.reference([q, np.float32(1), np.float32(0), r.astype(np.uint8)])
    np.testing.assert_array_equal(np.clip(np.rint(both), 0, 255), wanted.astype(np.float32))


def test_sums_beyond_16_bits_and_other_chains_are_left() -> None:
    assert added_bytes(scaled(0.05, 0.05, 1e-5)) is None
    assert added_bytes(scaled(0.05, 0.05, 0.0)) is None
    assert added_bytes(RESIDUAL) is None
    signed = replace(ROUNDED_TWICE, stores=(DType.I8,))
    assert added_bytes(signed) is None
    read_before = (*ROUNDED_TWICE.steps[:-1], Step("add", (14, 4)))
    assert added_bytes(replace(ROUNDED_TWICE, steps=read_before)) is None


def test_nothing_added_is_written_as_nothing() -> None:
    assert NOTHING_ADDED.as_c() == "{}" and not any(NOTHING_ADDED.bits())
    made = AddedBytes(-1.0, 1.0, 0.5, 0.25, 0.0)
    assert made.as_c().count("f") == 5 and made.bits()[1] == 0x3F800000
