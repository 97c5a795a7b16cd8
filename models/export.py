"""Store a model in the zoo: ``python -m models.export NAME…`` (needs torch and transformers).

Builds the architecture with random weights, exports it as users do, and strips it: every float
initializer of more than 64 elements is replaced by the rule that regenerates it (see
``rules.py``); names, attributes, small constants and integer tables stay.  Stack traces and local
paths that exporters leave behind are dropped.  ``README.md`` lists the exporters' versions.
"""

from __future__ import annotations

import argparse
import gzip
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from models.exporters import Dynamic, capture, trace
from models.make import GRAPHS
from models.rules import Gains, strip

__all__ = ["MODELS", "ZooModel", "export"]

_TEXT = ("input_ids", "attention_mask", "token_type_ids")
_BATCH: Dynamic = {0: "batch"}
_STEP: Dynamic = {0: "batch", 1: "sequence"}
_SIZES: Dynamic = {0: "batch", 2: "height", 3: "width"}


class ZooModel(NamedTuple):
    """A model of the zoo; ``balanced`` is the image size to balance its scales with, or 0."""

    name: str
    write: Callable[[], onnx.ModelProto]
    gains: Gains = ()
    balanced: int = 0


# ---- text ------------------------------------------------------------------------------


def _module(base: Any, config: Any, inputs: Sequence[str], keep: int = 1, **arguments: Any) -> Any:
    """Return a ``base`` model that takes ``inputs`` by position and returns ``keep`` outputs."""

    class Exported(base):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            named = dict(zip(inputs, tensors, strict=True))
            out = base.forward(self, **named, **arguments, return_dict=False)
            return out[0] if keep == 1 else tuple(out[:keep])

    return Exported(config)


def _text(
    module: Any, inputs: Sequence[str], outputs: Sequence[str], dynamo: bool = False
) -> onnx.ModelProto:
    """Export a module over token ids, batch and sequence dynamic."""
    import torch

    tokens = torch.randint(1, 500, (2, 16))
    feeds = (tokens, torch.ones_like(tokens), torch.zeros_like(tokens))[: len(inputs)]
    single = ("pooler_output", "text_embeds")
    dynamic = {n: _BATCH if n in single else _STEP for n in (*inputs, *outputs)}
    return (capture if dynamo else trace)(module, feeds, dynamic)


def _bert(hidden: int, layers: int, attention: str, outputs: int = 1, **sizes: int) -> Any:
    """Build a BERT encoder, by default with 12 heads; ``attention`` names the implementation."""
    from transformers import BertConfig, BertModel

    shape = {"num_attention_heads": 12, "intermediate_size": 4 * hidden} | sizes
    config = BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, attn_implementation=attention, **shape
    )

    class Encoder(BertModel):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config, add_pooling_layer=outputs == 2)

    return _module(Encoder, config, _TEXT, outputs)


def _minilm(attention: str, dynamo: bool = False) -> onnx.ModelProto:
    return _text(_bert(384, 6, attention), _TEXT, ["last_hidden_state"], dynamo)


def _tiny_bert() -> onnx.ModelProto:
    """Export a BERT that a test optimizes in seconds, with all parts of a transformer."""
    sizes = {"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512}
    return _text(_bert(64, 2, "eager", **sizes), _TEXT, ["last_hidden_state"])


def _bert_base() -> onnx.ModelProto:
    return _text(_bert(768, 12, "eager", 2), _TEXT, ["last_hidden_state", "pooler_output"])


def _distilbert() -> onnx.ModelProto:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(attn_implementation="eager")
    return _text(_module(DistilBertModel, config, _TEXT[:2]), _TEXT[:2], ["last_hidden_state"])


def _gpt2(attention: str, dynamo: bool = False) -> onnx.ModelProto:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(attn_implementation=attention)
    module = _module(GPT2LMHeadModel, config, _TEXT[:2], use_cache=False)
    return _text(module, _TEXT[:2], ["logits"], dynamo)


def _t5_small() -> onnx.ModelProto:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8)
    return _text(_module(T5EncoderModel, config, _TEXT[:2]), _TEXT[:2], ["last_hidden_state"])


def _clip_text() -> onnx.ModelProto:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(attn_implementation="eager", eos_token_id=2)
    module = _module(CLIPTextModelWithProjection, config, _TEXT[:2], 2)
    return _text(module, _TEXT[:2], ["text_embeds", "last_hidden_state"])


def _llama(attention: str, opset: int, dynamo: bool = False) -> onnx.ModelProto:
    """Export a decoder step over any number of new and cached tokens."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    layers, heads, size, new, past = 8, 4, 64, 5, 3
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=heads,
        attn_implementation=attention,
    )

    class Decoder(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            ids, mask, positions, *cache = tensors
            pairs = list(zip(cache[::2], cache[1::2], strict=True))
            old = getattr(DynamicCache, "from_legacy_cache", None)
            held = old(pairs) if old else DynamicCache(pairs)
            arguments = {"past_key_values": held, "use_cache": True, "position_ids": positions}
            out = LlamaForCausalLM.forward(self, ids, mask, **arguments)
            held = out.past_key_values
            pairs = held if old else [(layer.keys, layer.values) for layer in held.layers]
            return out.logits, *(tensor for pair in pairs for tensor in pair)

    ids = torch.randint(0, 500, (2, new))
    positions = torch.arange(past, past + new).repeat(2, 1)
    mask = torch.ones(2, past + new, dtype=torch.long)
    feeds = (ids, mask, positions, *torch.randn(2 * layers, 2, heads, past, size))
    slots = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    held: Dynamic = {0: "batch", 2: "past_sequence"}
    total = "past_sequence+sequence"
    dynamic: dict[str, Dynamic] = {"input_ids": _STEP, "attention_mask": {0: "batch", 1: total}}
    dynamic |= {"position_ids": _STEP, **{f"past_key_values.{slot}": held for slot in slots}}
    dynamic |= {"logits": _STEP, **{f"present.{slot}": {0: "batch", 2: total} for slot in slots}}
    return (capture if dynamo else trace)(Decoder(config), feeds, dynamic, opset)


# ---- images and sound ------------------------------------------------------------------


def _images(size: int = 224) -> tuple[Any]:
    import torch

    return (torch.rand(2, 3, size, size),)


def _classifier(family: str, dynamo: bool = False, **settings: Any) -> onnx.ModelProto:
    """Export an image classifier of transformers with 1000 classes."""
    import transformers

    config = getattr(transformers, f"{family}Config")(num_labels=1000, **settings)
    base = getattr(transformers, f"{family}ForImageClassification")
    module = _module(base, config, ["pixel_values"])
    dynamic = {"pixel_values": _BATCH, "logits": _BATCH}
    return (capture if dynamo else trace)(module, _images(), dynamic)


def _efficientnet() -> onnx.ModelProto:
    return _classifier(
        "EfficientNet",
        image_size=224,
        hidden_dim=1280,
        width_coefficient=1.0,
        depth_coefficient=1.0,
    )


def _detector(dynamo: bool = False) -> onnx.ModelProto:
    """Export for sizes that are multiples of 32 if traced; torch.export cannot express that."""
    from models.architectures import Detector

    if dynamo:
        return capture(Detector(), _images(), dict.fromkeys(("images", "boxes", "scores"), _BATCH))
    found: Dynamic = {0: "batch", 2: "anchors"}
    return trace(Detector(), _images(), {"images": _SIZES, "boxes": found, "scores": found})


def _unet() -> onnx.ModelProto:
    """Export as from a training script, with batch norms not folded into convolutions."""
    import torch

    from models.architectures import UNet

    unfused = {"training": torch.onnx.TrainingMode.PRESERVE}
    return trace(UNet(), _images(64), {"images": _SIZES, "masks": _SIZES}, **unfused)


def _tagger() -> onnx.ModelProto:
    import torch

    from models.architectures import Tagger

    frames: Dynamic = {0: "batch", 1: "frames"}
    dynamic = {"features": frames, "labels": frames}
    return trace(Tagger(), (torch.randn(2, 20, 80),), dynamic)


def _whisper_tiny() -> onnx.ModelProto:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        attn_implementation="eager",
    )
    module = _module(WhisperEncoder, config, ["input_features"])
    dynamic = dict.fromkeys(("input_features", "last_hidden_state"), _BATCH)
    return trace(module, (torch.randn(1, 80, 3000),), dynamic)


_UNSCALED = (("Attention/q/", 1 / 8), ("relative_attention_bias", 10.0))

MODELS = (
    ZooModel("minilm", lambda: _minilm("eager")),
    ZooModel("minilm-v5", lambda: _minilm("eager")),
    ZooModel("minilm-sdpa", lambda: _minilm("sdpa")),
    ZooModel("minilm-dynamo", lambda: _minilm("sdpa", dynamo=True)),
    ZooModel("bert-base", _bert_base),
    ZooModel("distilbert", _distilbert),
    ZooModel("gpt2", lambda: _gpt2("eager")),
    ZooModel("gpt2-dynamo", lambda: _gpt2("sdpa", dynamo=True)),
    ZooModel("llama", lambda: _llama("eager", 17)),
    ZooModel("llama-dynamo", lambda: _llama("sdpa", 20, dynamo=True)),
    ZooModel("llama-attention", lambda: _llama("sdpa", 23, dynamo=True)),
    ZooModel("t5-small", _t5_small, _UNSCALED),
    ZooModel("clip-text", _clip_text),
    ZooModel("whisper-tiny", _whisper_tiny),
    ZooModel("vit-base", lambda: _classifier("ViT", attn_implementation="eager")),
    ZooModel("vit-base-dynamo", lambda: _classifier("ViT", True, attn_implementation="sdpa")),
    ZooModel("resnet50", lambda: _classifier("ResNet"), balanced=224),
    ZooModel("mobilenetv2", lambda: _classifier("MobileNetV2", tf_padding=False), balanced=224),
    ZooModel("efficientnet-b0", _efficientnet, balanced=224),
    ZooModel("convnext-tiny", lambda: _classifier("ConvNext"), balanced=224),
    ZooModel("detector", _detector, balanced=224),
    ZooModel("detector-dynamo", lambda: _detector(True), balanced=224),
    ZooModel("unet", _unet, balanced=64),
    ZooModel("tagger", _tagger),
    ZooModel("tiny-bert", _tiny_bert),
)


def export(name: str) -> Path:
    """Export, strip and store one model; return the stored file."""
    entry = next(entry for entry in MODELS if entry.name == name)
    model = strip(entry.write(), entry.gains)
    if entry.balanced:
        from models.balance import balance

        images = np.random.default_rng(0).random((2, 3, entry.balanced, entry.balanced))
        balance(model, {model.graph.input[0].name: images.astype(np.float32)})
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
    parser.add_argument("names", nargs="+", choices=[entry.name for entry in MODELS])
    for name in parser.parse_args().names:
        path = export(name)
        print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
