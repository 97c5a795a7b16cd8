"""Which instruction-set levels a library holds."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from tracea_graph.config import Options
from tracea_graph.errors import UsageError
from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu.levels import BF16_ISAS

__all__ = ["levels_of", "settle_precision"]

_ALL = ("scalar", "avx2", "avx512")
_BF16 = frozenset(isa.name for isa in BF16_ISAS)
_NEEDED = MappingProxyType({"bf16": _BF16, "int16": _BF16, "bf16x2": frozenset({"amxbf16"})})
"""Levels of which a precision needs one."""


def levels_of(target: str, precision: str = "fp32") -> tuple[str, ...]:
    """Levels up to the target's, lowest first: every lower one is a fallback.

    Raises UsageError for a target nothing can be built for, or that this machine cannot check.
    """
    host = profile_cpu().isas
    if target == "host":
        return profile_cpu().levels(precision)
    device, _, level = target.partition(":")
    if device != "cpu" or level not in _ALL:
        raise UsageError(f"there is no target {target!r}; use host, cpu:{', cpu:'.join(_ALL)}")
    if level not in host:
        raise UsageError(f"this machine cannot run, so cannot check, {target}; it has {host[-1]}")
    return _ALL[: _ALL.index(level) + 1]


def settle_precision(options: Options) -> tuple[Options, tuple[str, ...]]:
    """The options with a precision the target computes in, and a note where it is another.

    Products in bf16 would be emulated without the instructions for them, and those in integers or
    in three parts be no faster, so they stay in float32.
    """
    levels = levels_of(options.target, options.precision)
    needed = _NEEDED.get(options.precision)
    if needed is None or needed & set(levels):
        return options, ()
    note = (
        f"nothing is computed in {options.precision}: {levels[-1]}, the highest level here, has "
        f"no instructions for it"
    )
    return dataclasses.replace(options, precision="fp32"), (note,)
