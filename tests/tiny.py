"""Small models that go through the whole pipeline in a second or two, and what they answer.

``transformer`` is a BERT of two layers as its exporter wrote it; its inputs always have a padded
mask.  ``product`` is one matrix product of any size.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.make import make
from tracea_graph.check.worker_process import Worker

__all__ = [
    "ROOT", "answers", "child", "error_between", "padded_text", "product", "transformer",
]  # fmt: skip

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
ROOT = Path(__file__).resolve().parents[1]


def transformer(folder: Path) -> Path:
    return make("tiny-bert", folder)


def padded_text(batch: int = 3, length: int = 13) -> dict[str, Array]:
    """Token ids, and a mask that hides the end of every entry but the first."""
    ids = np.random.default_rng(batch * length).integers(0, 512, (batch, length))
    mask = np.ones_like(ids)
    for entry in range(1, batch):
        mask[entry, length - entry - length // 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids % 3 == 0).astype(int)}


def product(path: Path, k: int = 32, n: int = 48, *, copies: int = 1, external: str = "") -> Path:
    """``y = Relu(x·w + b)``, ``copies`` times in a row (k = n); weights in a file or inline."""
    rng = np.random.default_rng(k + n)
    nodes, weights, value = [], [], "x"
    for i in range(copies):
        w = rng.standard_normal((k, n), dtype=np.float32) / np.float32(np.sqrt(k))
        b = rng.standard_normal(n, dtype=np.float32)
        weights += [numpy_helper.from_array(w, f"w{i}"), numpy_helper.from_array(b, f"b{i}")]
        result = "y" if i == copies - 1 else f"y{i}"
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}"], [f"p{i}"], f"product{i}"),
            helper.make_node("Add", [f"p{i}", f"b{i}"], [f"s{i}"], f"sum{i}"),
            helper.make_node("Relu", [f"s{i}"], [result], f"relu{i}"),
        ]
        value = result
    x, y = (
        helper.make_tensor_value_info(v, TensorProto.FLOAT, ["rows", size])
        for v, size in (("x", k), ("y", n))
    )
    graph = helper.make_graph(nodes, "product", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=64)
    else:
        onnx.save(model, path)
    return path


def answers(
    model: Path, feeds: Feeds, library: Path | None = None, level: str = "all", threads: int = 1
) -> dict[str, Array]:
    """What a model answers in a worker process, with its library or without."""
    with Worker() as worker:
        worker.open("model", model, library, level=level, threads=threads)
        return worker.run("model", feeds)


def error_between(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference of any output as a share of its ``max|y|``."""
    assert found.keys() == expected.keys()
    return max(
        float(np.abs(found[name] - y).max() / np.abs(y).max()) for name, y in expected.items()
    )


def child(code: str, *args: str | Path, cwd: Path | None = None) -> str:
    """Run Python code in a process of its own; its stdout.  Fails with its stderr."""
    command: Sequence[str | Path] = (sys.executable, "-c", code, *args)
    done = subprocess.run(command, cwd=cwd or ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fed_too(path: Path, *names: str) -> Path:
    """Let initializers (all by default) be inputs as well."""
    model = onnx.load(path, load_external_data=False)
    for held in model.graph.initializer:
        if not names or held.name in names:
            info = helper.make_tensor_value_info(held.name, held.data_type, list(held.dims))
            model.graph.input.append(info)
    path.write_bytes(model.SerializeToString())
    return path
