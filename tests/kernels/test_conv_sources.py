"""The text of the convolution kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kernels.conformance import compile_unit
from tracea_graph.kernels.cpu.emitter import emit

KERNELS = (
    "conv",
    "depthwise",
    "winograd",
    "pool",
    "resize",
    "channel_shuffle",
    "reorder",
    "conv_plain",
    "conv_bf16",
    "depthwise_bf16",
    "winograd_bf16",
    "conv_int16",
    "winograd_int16",
)


@pytest.mark.parametrize(("kernel", "level"), [("conv", "avx512"), ("depthwise", "avx2")])
def test_golden(kernel: str, level: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{kernel}_{level}.cpp", emit(kernel, level).text)


@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512", "avx512bf16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_without_a_warning(kernel: str, level: str) -> None:
    source = emit(kernel, level)
    cheap = tuple("-O1" if flag == "-O3" else flag for flag in source.flags)
    assert compile_unit(replace(source, flags=cheap)).exists()
