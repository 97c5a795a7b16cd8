"""Errors of sums of 8-bit floats on the device: ``python -m tests.gpu.float8_sums``.

For each depth and kind of numbers, prints what rounding the factors to e4m3 costs, and what the
sums lose besides: by ``wgmma``, promoted or not, by ``mma.sync``, and by torch (cuBLASLt) with
and without its fast sums.  Numbers are normal, their magnitudes, or normal around 1.  Each figure
is the root of the mean square of errors as a share of that of the results, then the mean of
errors as a share of the mean magnitude.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gpu.device import Device, Loaded
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.ops.chain import FLOAT8, LARGEST_FLOAT8, Chain

_DEPTHS = (768, 3072, 4096, 16384)
_ROWS, _COLUMNS = 512, 256
_KERNELS = {
    "wgmma": ("128x256x128x4x1", False), "promoted": ("128x192x128x5x1", True),
    "mma.sync": ("128x128x64x4", False),
}  # fmt: skip
_PLAIN = Chain(("full",), (), (0,))


def _numbers(rng: np.random.Generator, kind: str, rows: int, depth: int) -> Array:
    made = rng.standard_normal((rows, depth))
    return {"normal": made, "magnitudes": np.abs(made), "around 1": made + 1}[kind]


def _rounded(x: Array) -> tuple[Array, float]:
    """Return e4m3 numbers of which the largest is the largest there is, and their scale."""
    scale = float(np.abs(x).max()) / LARGEST_FLOAT8
    return (x / scale).astype(NUMPY[FLOAT8]), scale


def _ours(device: Device, x: Array, w: Array) -> Iterator[tuple[str, Array]]:
    """Yield the sums of each kernel with its name."""
    target = Target(CUDA, device.architecture)
    for kind, (tile, promoted) in _KERNELS.items():
        memory = Memory()
        y = memory.empty((_ROWS, _COLUMNS), np.float32)
        call = CALLS.make(
            "float8_gemm", FLOAT8.short, x=memory.put(x), w=memory.put(w), inputs=[], y=[y],
            chain=_PLAIN, promoted=promoted,
        )  # fmt: skip
        variant = find(call, target.architecture, tile)
        source = emit_kernel(call, variant, target)
        (built,) = compile_sources([source], [target.architecture.name])
        device.run(Loaded(built), launch_of(call, variant, target), memory)
        yield kind, memory.of(y).astype(np.float64)


def _theirs(x: Array, w: Array) -> Iterator[tuple[str, Array]]:
    import torch

    kind = torch.float8_e4m3fn
    left, right = (torch.from_numpy(a.view(np.uint8)).cuda().view(kind) for a in (x, w))
    one = torch.ones((), device="cuda")
    for fast in (True, False):
        y = torch._scaled_mm(
            left, right.t(), one, one, out_dtype=torch.float32, use_fast_accum=fast
        )
        yield f"torch {'fast' if fast else 'slow'}", y.cpu().numpy().astype(np.float64)


def _errors(y: Array, exact: Array) -> str:
    error = y - exact
    spread = float(np.sqrt((error**2).mean() / (exact**2).mean()))
    bias = float((error * np.sign(exact)).mean() / np.abs(exact).mean())
    return f"{spread:.1e} ({bias:+.1e})"


def main() -> int:
    """Print a line for each depth and kind of numbers."""
    import torch

    torch.zeros(1, device="cuda")
    device: Any = Device()
    for kind in ("normal", "magnitudes", "around 1"):
        for depth in _DEPTHS:
            rng = np.random.default_rng(depth)
            a, b = (_numbers(rng, kind, rows, depth) for rows in (_ROWS, _COLUMNS))
            (x, left), (w, right) = _rounded(a), _rounded(b)
            exact = x.astype(np.float64) @ w.astype(np.float64).T
            found = [("rounding", _errors(exact * left * right, a @ b.T))]
            found += ((name, _errors(y, exact)) for name, y in _ours(device, x, w))
            found += ((name, _errors(y, exact)) for name, y in _theirs(x, w))
            each = ", ".join(f"{name} {what}" for name, what in found)
            sys.stdout.write(f"{kind} {depth}: {each}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
