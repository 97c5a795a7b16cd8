"""List the sizes at which the zoo is timed; the first of a model is the one in comparisons."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SIZES", "sizes_of"]

Sizes = tuple[dict[str, int], ...]

_TOKENS: Sizes = ({}, {"sequence": 16}, {"sequence": 512}, {"batch": 8})
_DECODER: Sizes = ({}, {"sequence": 1, "past_sequence": 512})
_IMAGES: Sizes = ({}, {"batch": 8})

SIZES: Mapping[str, Sizes] = {
    **dict.fromkeys(("minilm", "bert-base"), _TOKENS),
    **dict.fromkeys(("llama", "llama-dynamo"), _DECODER),
    **dict.fromkeys(
        ("resnet50", "mobilenetv2", "efficientnet-b0", "convnext-tiny", "detector", "unet"),
        _IMAGES,
    ),
}


def sizes_of(name: str) -> Sizes:
    """Return the symbolic sizes to time a model at; other symbols have their default size."""
    return SIZES.get(name, ({},))
