"""Measure the cost model's coefficients of sparse products.

    python -m models.sparse_costs

A product with stored blocks takes equally long for one row and a few, because the block's elements
must be read and broadcast: ``step + block / b`` rows for blocks of ``b`` steps of k.  A product
with scattered zeros expands every element of the matrix once, whatever the rows.  Both are
measured on a matrix that stays in the caches, and printed beside the values in ``policy``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from models.sparsity import ModelTimer, product_model
from models.zero_blocks import block_mask
from tracea_graph.config import Environment
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.machine_model import measured_machine
from tracea_graph.ops.gemm import BLOCK_ROWS, STEP_ROWS
from tracea_graph.policy.cost_coefficients import packaged_coefficients

K, N = 512, 512
ROWS = (1, 16, 32)
BLOCKS = (1, 4, 16)


def blocks(folder: Path, seconds: float) -> None:
    """Return the number of rows that a stored step of k costs at least, per block size."""
    rng, bench = np.random.default_rng(0), ModelTimer(1, folder)
    matrix = rng.standard_normal((K, N)).astype(np.float32)
    for block in BLOCKS:
        sparse = matrix * block_mask((K, N), 0.5, (block, 16), "random")
        for rows in ROWS:
            feeds = {"x": rng.standard_normal((rows, K)).astype(np.float32)}
            seen = {"verify": False, "skip": ("unstructured-sparse-gemm",)}
            bench.add(f"{block} {rows}", product_model(sparse, rows=rows), feeds, **seen)
    least = _beside_a_call(bench, seconds)
    found = []
    for block in BLOCKS:
        each = (least[f"{block} 32"] - least[f"{block} 16"]) / 16
        found.append(least[f"{block} 1"] / each)
        print(f"  blocks of {block:2}: one row takes as long as {found[-1]:.1f}")
    design = np.array([[1, 1 / b] for b in BLOCKS])
    (step, beside), *_ = np.linalg.lstsq(design, np.array(found), rcond=None)
    print(f"  fitted: {step:.1f} + {beside:.1f} / b; policy: {STEP_ROWS} + {BLOCK_ROWS} / b")


def placing(folder: Path, seconds: float) -> None:
    """Return the vector instructions per element of a matrix with scattered zeros."""
    rng, bench = np.random.default_rng(0), ModelTimer(1, folder)
    matrix = rng.standard_normal((K, N)).astype(np.float32) * (rng.random((K, N)) < 0.5)
    for rows in (1, 2, 4):
        feeds = {"x": rng.standard_normal((rows, K)).astype(np.float32)}
        bench.add(f"{rows}", product_model(matrix, rows=rows), feeds, verify=False)
    least = {int(name): t for name, t in _beside_a_call(bench, seconds).items()}
    slope, start = np.polyfit([*least], [*least.values()], 1)
    gops = measured_machine(Environment(), host_levels()[-1]).vector_gops
    print(f"  {start * 1e6 * gops / (K * N):.2f} instructions, and {slope * 1e3:.1f} µs a row")
    print(f"  policy: {packaged_coefficients().instructions['fused placing']}")


def _beside_a_call(bench: ModelTimer, seconds: float) -> dict[str, float]:
    """Return the minimum ms of each model, less that of a run that computes almost nothing."""
    bench.add(_NOTHING, product_model(np.ones((1, 1)), rows=1), {"x": np.ones((1, 1), np.float32)})
    least = {name: t for name, (t, _) in bench.times(seconds).items()}
    nothing = least.pop(_NOTHING)
    return {name: t - nothing for name, t in least.items()}


_NOTHING = "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--seconds", type=float, default=10, help="for each table")
    args = parser.parse_args()
    for figure in (blocks, placing):
        print(figure.__name__)
        with tempfile.TemporaryDirectory() as folder:
            figure(Path(folder), args.seconds)


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
