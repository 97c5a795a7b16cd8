"""Quantize a model of the zoo to 8-bit integers, with ONNX Runtime's own quantizer.

    python -m models.make minilm-dynamic    # int8 weights, activations rounded in each run
    python -m models.make minilm-qdq        # conversions around every operator, scales fixed
    python -m models.quantize MODEL.onnx    # writes MODEL.npz: the inputs that scales come from

Static scales come from a few random inputs, as weights are random too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tracea_graph import session as open_session

__all__ = ["FORMS", "feeds", "main", "quantize"]

FORMS = ("dynamic", "qdq")
"""Suffixes of the names of quantized models."""
_SIZES = {"sequence": 128, "height": 224, "width": 224}
_CALIBRATED = 4
"""Inputs from which scales are chosen."""

Feed = dict[str, np.ndarray]


class _Feeds(CalibrationDataReader):  # type: ignore[misc]
    """The inputs that a quantizer calibrates with."""

    def __init__(self, feeds: Iterator[Feed]) -> None:
        self._feeds = feeds

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def quantize(source: Path, form: str, target: Path) -> None:
    """Write the quantized form of a model.

    Raises:
        ValueError: there is no such form.
    """
    if form == "dynamic":
        quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    elif form == "qdq":
        quantize_static(
            source, target, _Feeds(feeds(source)), quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
        )  # fmt: skip
    else:
        raise ValueError(f"there is no quantized form '{form}', only {', '.join(FORMS)}")


def feeds(source: Path, batch: int = 1) -> Iterator[Feed]:
    """Yield random inputs: words of the vocabulary, full masks, pixels of unit variance.

    ``source`` is an original or a result with its library.
    """
    session = open_session(source, providers=["CPUExecutionProvider"])
    tables = [t.dims[0] for t in onnx.load(source).graph.initializer if len(t.dims) == 2]
    rng = np.random.default_rng(1)
    for _ in range(_CALIBRATED):
        yield {i.name: _input(rng, i, max(tables, default=2), batch) for i in session.get_inputs()}


def _input(rng: np.random.Generator, put: Any, words: int, batch: int) -> Any:
    sizes = _SIZES | {"batch": batch}
    shape = [d if isinstance(d, int) else sizes.get(d, 1) for d in put.shape]
    if put.type in ("tensor(float)", "tensor(float16)"):
        drawn = rng.standard_normal(shape, np.float32)
        return drawn.astype(np.float16) if put.type == "tensor(float16)" else drawn
    if "mask" in put.name:
        return np.ones(shape, np.int64)
    return rng.integers(0, 2 if "type" in put.name else words, shape)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the inputs of models, as ``--data`` takes them, beside them."""
    parser = argparse.ArgumentParser(prog="python -m models.quantize", description=__doc__)
    parser.add_argument("model", type=Path, nargs="+")
    for path in parser.parse_args(argv).model:
        sets = list(feeds(path))
        arrays = {name: np.stack([feed[name] for feed in sets]) for name in sets[0]}
        np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
