"""Numbers of an epilogue as arguments of its kernel, so that layers share the kernel.

Each layer of a quantized model has steps and bounds of its own.  As literals they made a kernel of
every layer, whose text a GPU reads from memory again in each run; as arguments they are operands
in constant memory, which instructions read as they read literals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Lifted", "lifted"]

_LITERAL = re.compile(r"set1\((-?0x[0-9a-f.]+p[+-]?\d+)f\)")
_NUMBER = re.compile(r"-?\d+\.\d+(e[+-]?\d+)?")


@dataclass(frozen=True)
class Lifted:
    """Template parameters whose statements name numbers ``k0``, ``k1``, …, and these numbers."""

    parameters: Mapping[str, Any]
    values: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"k{i}" for i in range(len(self.values)))

    @property
    def key(self) -> str:
        """16 hex digits that differ where the statements do, whatever the numbers are."""
        listed = repr(sorted(self.parameters.items(), key=lambda item: item[0]))
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


def lifted(parameters: Mapping[str, Any]) -> Lifted:
    """Replace the literals of a chain's parameters by names; see ``templates/chain.h``.

    ``parameters`` may have a ``table``, with statements of its own and a least level, and values
    by key (``keyed``).  Their numbers follow those of the chain.
    """
    values, made = list[float](), dict(parameters)

    def named(text: str) -> str:
        def name(found: re.Match[str]) -> str:
            values.append(float.fromhex(found[1]))
            return f"k{len(values) - 1}"

        return _LITERAL.sub(name, text)

    def block(one: Mapping[str, Any]) -> dict[str, Any]:
        return {**one, "steps": listed(one["steps"]), "result": named(one["result"])}

    def listed(steps: Sequence[str]) -> list[str]:
        return [named(step) for step in steps]

    made["text"] = _NUMBER.sub("k", str(made["text"]))
    made["steps"] = listed(made["steps"])
    made["results"] = tuple(replace(r, expression=named(r.expression)) for r in made["results"])
    if made.get("table"):
        made["table"] = block(made["table"])
        made["table"]["low"] = named(f"set1({float(made['table']['low'].rstrip('f')).hex()}f)")
    if made.get("keyed"):
        made["keyed"] = [block(one) for one in made["keyed"]]
    return Lifted(made, tuple(values))
