"""Comparisons of tensors with what they are expected to hold, for the runtime's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.runtime.support import Case
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.lowering.initializer_guard_program import lower_guard

__all__ = ["compared", "guard_cases"]

DTYPES = {
    np.dtype(np.float32): DType.F32, np.dtype(np.float16): DType.F16,
    np.dtype(np.float64): DType.F64, np.dtype(np.int64): DType.I64, np.dtype(np.int8): DType.I8,
    np.dtype(np.bool_): DType.BOOL,
}  # fmt: skip


def compared(name: str, x: Sequence[Any], references: Sequence[Any]) -> Case:
    specs = [TensorSpec(DTYPES[a.dtype], a.shape) for a in x]
    same = all(a.tobytes() == b.tobytes() for a, b in zip(x, references, strict=True))
    return Case(
        f"guard_{name}", lower_guard(specs), (*x, *references), (np.array([same]),),
    )  # fmt: skip


def changed(arrays: Sequence[Any], which: int, at: int, value: Any) -> list[Any]:
    """Copies, one element of one of them being another."""
    made = [a.copy() for a in arrays]
    made[which].reshape(-1)[at] = value
    return made


def guard_cases() -> tuple[Case, ...]:
    rng = np.random.default_rng(7)
    shapes = ((), (3,), (5, 7), (2, 3, 4, 5), (0, 4), (1,)) * 2
    many = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    mixed = [
        rng.standard_normal((6, 5)).astype(np.float16), rng.standard_normal(9),
        rng.integers(-9, 9, (4, 3)), rng.integers(-9, 9, 17).astype(np.int8),
        np.array([True, False]), np.array([np.nan, 0.0, np.inf], np.float32),
    ]  # fmt: skip
    large = [rng.standard_normal((700, 901)).astype(np.float32) for _ in range(2)]
    return (
        compared("equal", many, many),
        compared("first", many, changed(many, 0, 0, 9.0)),
        compared("before_further", many, changed(many, 9, 7, 9.0)),
        compared("last", many, changed(many, -1, 0, 9.0)),
        compared("mixed", mixed, mixed),
        compared("mixed_last_byte", mixed, changed(mixed, 3, -1, 77)),
        compared("sign_of_zero", mixed, changed(mixed, 5, 1, -0.0)),
        compared("large", large, large),
        compared("large_begin", large, changed(large, 0, 0, 9.0)),
        compared("large_end", large, changed(large, 1, -1, 9.0)),
        compared("large_middle", large, changed(large, 1, 4321, 9.0)),
    )
