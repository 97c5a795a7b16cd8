"""Elementwise chains in GPU kernels: their steps are spelt as for the CPU, on one number each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels import chain_source
from tracea_graph.ops.chain import Chain

__all__ = ["ELEMENTS", "Tensor", "operands", "parameters", "results", "vector_length"]

ELEMENTS: Mapping[DType, str] = MappingProxyType(
    {
        DType.F32: "float",
        DType.F16: "f16",
        DType.BF16: "bf16",
        DType.BOOL: "truth",
        DType.I32: "i32",
        DType.I64: "i64",
        DType.U8: "u8",
        DType.I8: "i8",
    }
)
"""The templates' name of an element type (``templates/values.h``)."""

_BYTES = 16
"""Of one access to memory."""


@dataclass(frozen=True)
class Tensor:
    """What a template needs of an operand or result: its number, type, and how it lies.

    ``expression`` is a result's value.
    """

    place: int
    dtype: DType
    kind: str = "full"
    expression: str = ""

    @property
    def element(self) -> str:
        return ELEMENTS[self.dtype]

    @property
    def held(self) -> str:
        """The type of one number in a register."""
        return "vm" if self.dtype is DType.BOOL else "vf"

    @property
    def wide(self) -> bool:
        """True if it advances along the columns."""
        return self.kind in ("full", "row")

    @property
    def tall(self) -> bool:
        """True if it advances along the rows."""
        return self.kind in ("full", "col")


def operands(chain: Chain) -> tuple[Tensor, ...]:
    """The chain's operands, in order."""
    pairs = zip(chain.operands, chain.operand_types, strict=True)
    return tuple(Tensor(i, dtype, kind) for i, (kind, dtype) in enumerate(pairs))


def results(chain: Chain) -> tuple[Tensor, ...]:
    """The chain's results, in order."""
    listed = chain_source.results(chain)
    return tuple(Tensor(i, r.dtype, expression=r.expression) for i, r in enumerate(listed))


def vector_length(*dtypes: DType, width: int = _BYTES) -> int:
    """Elements a thread takes at once: ``width`` bytes of the narrowest float."""
    floats = [d.size for d in dtypes if d in (DType.F32, DType.F16, DType.BF16)]
    return int(width / min(floats, default=DType.F32.size))


def parameters(chain: Chain) -> dict[str, Any]:
    """What ``templates/chain.h`` asks for."""
    return {
        "text": chain.text,
        "operands": operands(chain),
        "results": results(chain),
        "steps": chain_source.statements(chain),
    }
