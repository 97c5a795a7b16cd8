"""Store a model in the zoo: ``python -m models.export NAME…`` (needs torch and transformers).

Builds the architecture with random weights, exports it as users do, and strips it: every float
initializer of more than 64 elements is replaced by the rule that regrows it (see ``make.py``);
names, attributes, small constants and integer tables stay.  Stack traces and local paths that
exporters leave behind are dropped.  What was exported with which versions stands in ``README.md``.
"""

from __future__ import annotations

import argparse
import gzip
import inspect
import io
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx

from models.make import GRAPHS, RULE

__all__ = ["MODELS", "export", "rules", "strip"]

_KEEP = 64
_THROUGH = ("Identity", "Cast", "Reshape", "Unsqueeze", "Transpose", "Expand")
_TEXT = ("input_ids", "attention_mask", "token_type_ids")


def strip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace large float initializers by their rule and drop what names the local machine."""
    rule = rules(model.graph)
    for tensor in model.graph.initializer:
        if tensor.name in rule:
            mean, std = rule[tensor.name]
            bare = onnx.TensorProto(
                name=tensor.name,
                data_type=tensor.data_type,
                dims=tensor.dims,
                doc_string=f"{RULE} {mean:g} {std:.6g}",
            )
            tensor.CopyFrom(bare)
    model.doc_string = ""
    model.graph.doc_string = ""
    del model.graph.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        del value.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


def rules(graph: onnx.GraphProto) -> dict[str, tuple[float, float]]:
    """(mean, std) for each large float initializer, read off the node that uses it."""
    large = {
        t.name: tuple(t.dims)
        for t in graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and math.prod(t.dims) > _KEEP
    }
    found: dict[str, tuple[float, float]] = {}
    origin = {name: (name, dims) for name, dims in large.items()}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if name not in origin:
                continue
            source, dims = origin[name]
            if node.op_type in _THROUGH and slot == 0:
                flip = node.op_type == "Transpose"
                origin[node.output[0]] = (source, dims[::-1] if flip else dims)
            else:
                found.setdefault(source, _rule(node, slot, dims))
    return {name: found.get(name, (0.0, 0.02)) for name in large}


def _rule(node: onnx.NodeProto, slot: int, dims: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a weight of shape ``dims`` in input ``slot`` of ``node``.

    Products keep the variance of what they multiply; those of queries and keys raise it, so that
    attention is neither flat nor one-hot.
    """
    if node.op_type == "Gather":
        return 0.0, 0.05
    if node.op_type in ("MatMul", "Gemm") and slot < 2:
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        sharp = any(word in node.output[0] for word in ("query", "/key", "q_lin", "k_lin"))
        return 0.0, (1.5 if sharp else 1.0) / math.sqrt(dims[-1 if transposed else -2])
    if node.op_type == "Conv" and slot == 1:
        return 0.0, math.sqrt(2.0 / math.prod(dims[1:]))
    scale = node.op_type in ("LayerNormalization", "BatchNormalization") and slot in (1, 4)
    if scale or node.op_type == "Mul":
        return 1.0, 0.1
    return 0.0, 0.02


def _module(base: Any, config: Any, inputs: Sequence[str], keep: int = 1, **arguments: Any) -> Any:
    """A model of class ``base`` that takes ``inputs`` by position and returns ``keep`` outputs."""

    class Exported(base):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            named = dict(zip(inputs, tensors, strict=True))
            out = base.forward(self, **named, **arguments, return_dict=False)
            return out[0] if keep == 1 else tuple(out[:keep])

    return Exported(config)


def _random_weights(module: Any) -> Any:
    """Make all parameters differ: the exporter merges equal ones, as fresh biases would be."""
    import torch

    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(1.0, 0.02)
    return module.eval()


def _text(module: Any, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Export a module over token ids, batch and sequence dynamic, at opset 17."""
    dynamic = {name: {0: "batch", 1: "sequence"} for name in (*inputs, *outputs)}
    if "pooler_output" in dynamic:
        del dynamic["pooler_output"][1]
    return _torchscript(module, _tokens(len(inputs)), inputs, outputs, dynamic)


def _tokens(count: int) -> tuple[Any, ...]:
    import torch

    tokens = torch.randint(1, 500, (2, 16))
    return (tokens, torch.ones_like(tokens), torch.zeros_like(tokens))[:count]


def _torchscript(
    module: Any,
    feeds: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic: dict[str, dict[int, str]],
) -> onnx.ModelProto:
    """Run the TorchScript-based exporter, the only one of older versions of torch."""
    import torch

    old = "dynamo" not in inspect.signature(torch.onnx.export).parameters
    arguments: dict[str, Any] = {} if old else {"dynamo": False}
    arguments |= {"input_names": list(inputs), "output_names": list(outputs)}
    return _to_proto(module, feeds, opset_version=17, dynamic_axes=dynamic, **arguments)


def _to_proto(module: Any, feeds: tuple[Any, ...], **arguments: Any) -> onnx.ModelProto:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(_random_weights(module), feeds, str(path), **arguments)
        return onnx.load(path)


def _bert(hidden: int, layers: int, attention: str, outputs: int = 1, **sizes: int) -> Any:
    """A BERT encoder, 12 heads by default; ``attention`` names the implementation to export."""
    from transformers import BertConfig, BertModel

    shape = {"num_attention_heads": 12, "intermediate_size": 4 * hidden} | sizes
    config = BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, attn_implementation=attention, **shape
    )

    class Encoder(BertModel):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config, add_pooling_layer=outputs == 2)

    return _module(Encoder, config, _TEXT, outputs)


def _minilm(attention: str) -> onnx.ModelProto:
    return _text(_bert(384, 6, attention), _TEXT, ["last_hidden_state"])


def _tiny_bert() -> onnx.ModelProto:
    """Small enough for a test to optimize in seconds, yet nothing of a transformer is missing."""
    sizes = {"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512}
    return _text(_bert(64, 2, "eager", **sizes), _TEXT, ["last_hidden_state"])


def _minilm_dynamo() -> onnx.ModelProto:
    import torch

    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    return _to_proto(
        _bert(384, 6, "sdpa"),
        _tokens(3),
        dynamo=True,
        input_names=list(_TEXT),
        output_names=["last_hidden_state"],
        dynamic_shapes=((axes,) * 3,),
    )


def _bert_base() -> onnx.ModelProto:
    return _text(_bert(768, 12, "eager", 2), _TEXT, ["last_hidden_state", "pooler_output"])


def _distilbert() -> onnx.ModelProto:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(attn_implementation="eager")
    return _text(_module(DistilBertModel, config, _TEXT[:2]), _TEXT[:2], ["last_hidden_state"])


def _gpt2() -> onnx.ModelProto:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(attn_implementation="eager")
    module = _module(GPT2LMHeadModel, config, _TEXT[:2], use_cache=False)
    return _text(module, _TEXT[:2], ["logits"])


def _vit_base() -> onnx.ModelProto:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(attn_implementation="eager", num_labels=1000)
    module = _module(ViTForImageClassification, config, ["pixel_values"])
    dynamic = {"pixel_values": {0: "batch"}, "logits": {0: "batch"}}
    return _torchscript(
        module, (torch.rand(2, 3, 224, 224),), ["pixel_values"], ["logits"], dynamic
    )


MODELS: tuple[tuple[str, Callable[[], onnx.ModelProto]], ...] = (
    ("minilm", lambda: _minilm("eager")),
    ("minilm-v5", lambda: _minilm("eager")),
    ("minilm-sdpa", lambda: _minilm("sdpa")),
    ("minilm-dynamo", _minilm_dynamo),
    ("bert-base", _bert_base),
    ("distilbert", _distilbert),
    ("gpt2", _gpt2),
    ("vit-base", _vit_base),
    ("tiny-bert", _tiny_bert),
)


def export(name: str) -> Path:
    """Export, strip and store one model; return the stored file."""
    model = strip(dict(MODELS)[name]())
    path = GRAPHS / f"{name}.onnx.gz"
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(model.SerializeToString(deterministic=True))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed.getvalue())
    return path


def main() -> None:
    """Store the models named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.export", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[name for name, _ in MODELS])
    for name in parser.parse_args().names:
        path = export(name)
        print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
