"""The cost model's coefficients, fitted by ``python -m models.fit FILE --write``.

``shares``        fraction of peak throughput that products reach, by who computes them
``instructions``  vector instructions per element, by operator (ONNX Runtime's, or ``fused …``);
                  ``across`` is for axes other than the last, ``Gather run`` is per contiguous
                  run of copied elements, ``fused staging`` per strided element that a chain
                  copies first, each from a cache line of its own
``us``            fixed costs: per head of an attention, per step of a recurrence

Shares of 16-bit products and convolutions are fitted to ``minilm.bf16``, ``minilm.int16`` and
``resnet50.bf16`` of the stored measurements.  :data:`UNMEASURED` shares are estimates:
convolutions in int16, direct and by Winograd, are close to those in bf16, attention in bf16 is
at the peak of float32, products of 8-bit integers at nine tenths of four times that peak, and
products and convolutions in fp16 at what ``python -m models.modelled_tiles`` says of Arm's cores
(``python -m models.region_times resnet50.onnx --precision int16`` measures the former).

Shares named ``… tiles`` are for processors with a matrix unit, relative to the float32 peak.

Operators that no model of the zoo contains keep initial values.  These come from chains of equal
nodes, run in ONNX Runtime without optimizations: the time of a node minus the time of its traffic
according to ``CostModel``, in vector instructions per element, at least 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from tracea_graph.policy.machine_model import Machine

__all__ = ["FILE", "UNMEASURED", "Coefficients", "packaged_coefficients"]

FILE = Path(__file__).with_name("coefficients.json")
UNMEASURED = (
    "FusedAttention bf16", "FusedConv f16", "FusedConv int16", "FusedConv winograd2_int16",
    "FusedGemm f16", "FusedGemm int8", "FusedGemm nbits", "FusedGemm nbits int8", "product int8",
    "product nbits", "product nbits int8",
)  # fmt: skip
"""Shares of precisions other than float32 that depend on fewer than three measured regions."""


@dataclass(frozen=True, eq=False)
class Coefficients:
    """All fitted numbers, by kind and name."""

    shares: Mapping[str, float]
    instructions: Mapping[str, float]
    us: Mapping[str, float]

    def names(self) -> list[tuple[str, str]]:
        """Return kind and name of every number."""
        return [(kind, name) for kind, numbers in asdict(self).items() for name in numbers]

    def scaled(self, kind: str, name: str, factor: float) -> Coefficients:
        """Return a copy with one number multiplied and rounded to three digits."""
        numbers = dict(getattr(self, kind))
        numbers[name] = float(f"{numbers[name] * factor:.3g}")
        return replace(self, **{kind: numbers})

    def on_matrix_unit(self) -> Coefficients:
        """Return a copy whose products have the speeds measured on a matrix unit (bf16)."""
        end = " tiles"
        own = {n.removesuffix(end): s for n, s in self.shares.items() if n.endswith(end)}
        return replace(self, shares={**self.shares, **own})

    def on(self, machine: Machine) -> Coefficients:
        """Return the coefficients of a machine: it may have a matrix unit."""
        return self.on_matrix_unit() if machine.tiles else self

    def to_json(self) -> str:
        """Return the text of the coefficients' file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


@cache
def packaged_coefficients() -> Coefficients:
    """Return the coefficients that come with the package."""
    return Coefficients(**json.loads(FILE.read_text(encoding="utf-8")))
