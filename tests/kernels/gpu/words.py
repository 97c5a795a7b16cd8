"""One kernel that takes every elementary step of chains, over a grid dense where they bend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.machine import Array, Memory
from tests.steps import one_step
from tracea_graph.ir import DType
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.dialect import Target
from tracea_graph.kernels.gpu.emitter import kernel_preamble
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import Launch, i32, pointer
from tracea_graph.ops.chain import ELEMENTARY, Chain

__all__ = ["STEPS", "check", "grid", "kernel", "launch"]

STEPS: dict[str, Chain] = (
    {op: one_step(op) for op in ELEMENTARY}
    | {f"pow {p:g}": one_step("pow", p) for p in (2.0, 3.0, 1.0, 0.5, -0.5, -1.0, -2.0, 1.7)}
    | {f"div {by:g}": one_step("div", by) for by in (0.03558805, -7.0, 0.25, 3e-20, 1.0)}
)
ODD = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        3e38,
        -3e38,
        1e5,
        12345.678,
        1e6,
        -7654321.0,
        1e12,
        -1e20,
        1.5e38,
        5e-39,
    ],
    np.float32,
)


CANCELLING = ("gelu", "gelu_tanh", "hard_sigmoid", "hard_swish")
"""What adds numbers that nearly cancel, as the definition does: their error counts from 1 on."""


def grid() -> tuple[Array, Array]:
    """Two operands; a truth value is what is above zero."""
    fine = np.linspace(-12, 12, 4001)
    wide = np.geomspace(1e-20, 80, 1001)
    x = np.concatenate([fine, wide, -wide, ODD]).astype(np.float32)
    y = np.random.default_rng(0).permutation(x)
    y[-ODD.size :] = ODD[::-1]
    return x, y


def kernel(target: Target) -> KernelSource:
    """``z[step][i]`` of ``x[i]``, ``y[i]`` and their sum."""
    return KernelSource("tracea_words", "".join(_text(target)), 128)


def _text(target: Target) -> Iterator[str]:
    yield kernel_preamble(target)
    yield "namespace tracea {\nKERNEL(tracea_words, 128, 1)("
    yield "const float* x, const float* y, float* z, i32 n) {\n"
    yield "const i32 i = block_x() * 128 + thread();\nif (i >= n) return;\n"
    for place, chain in enumerate(STEPS.values()):
        yield "{\n"
        for x in chain_parameters.operands(chain):
            value = ("x[i]", "y[i]", "x[i] + y[i]")[x.index]
            value += " > 0.0f" if x.dtype is DType.BOOL else ""
            yield f"const {x.held} x{x.index} = {value};\n"
        yield "\n".join(chain_source.chain_statements(chain))
        (result,) = chain_source.chain_results(chain)
        yield f"\nz[(i64){place} * n + i] = (float){result.expression};\n}}\n"
    yield "}\n}  // namespace tracea\nEXPORT(tracea_words)\n"


def launch(memory: Memory) -> tuple[Launch, Array]:
    """The launch of that kernel on a memory, and where its results come."""
    views = [memory.put(one) for one in grid()]
    n = grid()[0].size
    z = memory.empty((len(STEPS), n), np.float32)
    made = tuple(pointer(v, DType.F32) for v in (*views, z))
    return Launch("tracea_words", (-(-n // 128), 1, 1), 128, 0, (*made, i32(n))), memory.of(z)


def check(z: Array) -> dict[str, float]:
    """The largest error of each step, relative to a result or to 1e-3, whichever is larger.

    Where the exact result is infinite or no number, so must be what came.
    """
    x, y = grid()
    errors = {}
    for (name, chain), got in zip(STEPS.items(), z, strict=True):
        given = (x, y, x + y)
        count = len(chain.operands)
        pairs = zip(given[:count], chain.operand_types, strict=True)
        with np.errstate(all="ignore"):
            xs = [v > 0 if d is DType.BOOL else v.astype(np.float64) for v, d in pairs]
            (exact,) = chain.reference(xs)
            if name.startswith("pow "):  # NumPy takes the root where the exponent is one number
                exact = np.power(xs[0], np.full(x.shape, float(name[4:])))
            wanted = np.asarray(exact, np.float64)
            single = wanted.astype(np.float32)
        plain = np.isfinite(single)
        assert np.array_equal(got[~np.isfinite(single)], single[~np.isfinite(single)], True), name
        scale = np.maximum(np.abs(wanted[plain]), 1.0 if name in CANCELLING else 1e-3)
        errors[name] = float((np.abs(got[plain] - wanted[plain]) / scale).max())
    return errors
