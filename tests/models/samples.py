"""Inputs and sessions for the models of the zoo."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from models.make import available
from tests.graphs import session

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = dict[str, Array]
LLAMAS = ("llama", "llama-attention", "llama-dynamo")


def models(*fast: str, of: Iterable[str] = available()) -> list[Any]:
    """Parameters of a test over all models; those not named run only with the slow tests."""
    slow = (pytest.param(name, marks=pytest.mark.slow) for name in of if name not in fast)
    return [*fast, *slow]


def feeds_of(opened: ort.InferenceSession, length: int = 12, past: int = 5) -> Feeds:
    """Two different samples for each input; ``past`` cached tokens where there is a cache."""
    rng = np.random.default_rng(7)
    inputs = [value.name for value in opened.get_inputs()]
    past = past if "position_ids" in inputs else 0
    made: Feeds = {
        "input_ids": rng.integers(0, 500, (2, length)),
        "attention_mask": np.ones((2, past + length), np.int64),
        "token_type_ids": np.zeros((2, length), np.int64),
        "position_ids": np.tile(np.arange(past, past + length), (2, 1)),
        "pixel_values": rng.random((2, 3, 224, 224), dtype=np.float32),
        "images": rng.random((2, 3, 224, 224), dtype=np.float32),
        "features": rng.standard_normal((2, 21, 80), dtype=np.float32),
        "input_features": rng.standard_normal((2, 80, 3000), dtype=np.float32),
    }
    caches = (name for name in inputs if name.startswith("past_key_values"))
    made |= {name: rng.standard_normal((2, 4, past, 64), dtype=np.float32) for name in caches}
    return {name: made[name] for name in inputs}


def opened(path: Path) -> tuple[ort.InferenceSession, Feeds]:
    """A session that takes its float weights as inputs, and those weights.

    A handful of numbers is no weight: sizes and scales have to stay constant.
    """
    model = onnx.load(path)
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in floats if np.prod(t.dims) > 4}
    kept = [t for t in model.graph.initializer if t.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, w.shape) for n, w in weights.items()
    )
    return session(model, optimized=True), weights


def distance(expected: Iterable[Array], got: Iterable[Array]) -> float:
    """The largest difference in any output, as a share of the largest value there."""
    pairs = zip(expected, got, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)
