"""The cost model's coefficients, as ``python -m models.fit FILE --write`` fitted them.

``shares``        of the peak: what products reach, by who computes them
``instructions``  vector instructions per element, by operator (ONNX Runtime's, or ``fused …``);
                  ``across`` is along another axis than the last, ``Gather run`` for each run of
                  elements it copies, ``fused staging`` per element that lies a stride apart and is
                  copied on its way into a chain, a cache line each
``us``            what neither explains: of each head of an attention, each step of a recurrence

Products and convolutions of two numbers at once (bf16 and 16-bit integers) are fitted to
``minilm.bf16``, ``minilm.int16`` and ``resnet50.bf16`` of the stored measurements.  Three shares
stand for what these lack and are nobody's measurement (``UNMEASURED``): convolutions in int16 are
set to 0.92 and, by Winograd, to 0.93 of those in bf16, attention in bf16 to the peak of float32.
``python -m models.region_times resnet50.onnx --precision int16`` measures the former.

``… tiles`` are those of processors with matrix tiles, which no stored measurement has: one
Xeon's U-Net and ConvNeXt-tiny, GFLOP/s of their kernels over the peak of float32.

The first numbers of operators the zoo lacks: ONNX Runtime 1.31, one thread of a Zen 4 core, 512
bits a vector (59 billion vector instructions a second), chains of 4 and of 12 equal nodes over
128×384 or 1×64×56×56 floats, optimizations off; from a node's time goes what ``CostModel`` says of
its traffic, and the rest, in instructions per element, is the weight, 1 where nothing is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

__all__ = ["FILE", "UNMEASURED", "Tables", "fitted"]

FILE = Path(__file__).with_name("coefficients.json")
UNMEASURED = ("FusedAttention bf16", "FusedConv int16", "FusedConv winograd2_int16")
"""Shares in another precision than float32 that no three measured regions depend on."""


@dataclass(frozen=True, eq=False)
class Tables:
    """All numbers that are fitted, by kind and name."""

    shares: Mapping[str, float]
    instructions: Mapping[str, float]
    us: Mapping[str, float]

    def names(self) -> list[tuple[str, str]]:
        """Kind and name of every number."""
        return [(kind, name) for kind, numbers in asdict(self).items() for name in numbers]

    def scaled(self, kind: str, name: str, factor: float) -> Tables:
        """The same with one number multiplied, to three digits."""
        numbers = dict(getattr(self, kind))
        numbers[name] = float(f"{numbers[name] * factor:.3g}")
        return replace(self, **{kind: numbers})

    def on_tiles(self) -> Tables:
        """The same where products in bf16 run on matrix tiles."""
        end = " tiles"
        own = {n.removesuffix(end): s for n, s in self.shares.items() if n.endswith(end)}
        return replace(self, shares={**self.shares, **own})

    def to_json(self) -> str:
        """As the file stores it."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


@cache
def fitted() -> Tables:
    """The numbers that come with the package."""
    return Tables(**json.loads(FILE.read_text(encoding="utf-8")))
