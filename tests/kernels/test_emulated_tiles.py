"""Kernels of matrix tiles (AMX) on processors without these, by ``emulated_tiles.h``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.kernels import test_gemm_bf16, test_gemm_int8
from tracea_graph.hardware.cpu import profile_cpu
from tracea_graph.kernels.cpu.emitter import CompilationUnit, emit_unit
from tracea_graph.kernels.cpu.isa_levels import isa_of

TILES = Path(__file__).with_name("emulated_tiles.h")


def _emulated(kernel: str, isa: str) -> CompilationUnit:
    unit = emit_unit(kernel, isa)
    return replace(unit, text=TILES.read_text() + unit.text)


def _missing(level: str) -> list[str]:
    """Features that a level needs, and that neither this processor has nor the header emulates."""
    known = profile_cpu().flags
    return [f for f in isa_of(level).features if not f.startswith("amx") and f not in known]


def _needs(level: str) -> pytest.MarkDecorator:
    missing = ", ".join(_missing(level))
    return pytest.mark.skipif(bool(missing), reason=f"the processor has no {missing}")


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_gemm_int8, test_gemm_bf16):
        monkeypatch.setattr(module, "emit_unit", _emulated)


@_needs("amxint8")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("n", [17, 49])
def test_products_of_bytes(dtype: type, n: int) -> None:
    test_gemm_int8.test_equals_int64("amxint8", dtype, n)


@_needs("amxint8")
def test_sums_become_bytes() -> None:
    for fit in (False, True):
        test_gemm_int8.test_sums_are_rounded_to_bytes("amxint8", 33, 131, fit)


@_needs("amxbf16")
def test_products_in_bf16() -> None:
    test_gemm_bf16.test_equals_reference("amxbf16", 49, False)
