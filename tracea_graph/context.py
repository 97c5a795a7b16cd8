"""Contexts: a target, by default this machine, and the kernels it runs, with reasons.

context = Context()
context.plan_kernel("flash_attention_2", precision="BF16").variant_id
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from tracea_graph.config import Environment
from tracea_graph.hardware import Measurements
from tracea_graph.policy import KernelPlan, PolicyEngine
from tracea_graph.policy.operator_topology import dtype_of, fallback_dtypes
from tracea_graph.target import HOST, read_environment, target_of

__all__ = ["Context"]

_PRECISIONS = {"f32": "fp32", "f16": "fp16"}
"""Names of precisions that differ from the names of their element types."""


class Context:
    """Queries about the kernels for a target, such as ``host`` or ``cuda:sm_90``.

    The default target is this machine with all its instruction set levels.  Targets that this
    machine lacks are answered from tables instead of measurements.  Raises UsageError for a target
    that cannot be built for.
    """

    def __init__(self, target: str = HOST, environment: Environment | None = None) -> None:
        self.target = target
        self._environment = environment or read_environment()
        self._backend = target_of(target, "fp32").backend

    @property
    def backend(self) -> str:
        """The name of the target's backend."""
        return self._backend.name

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations that kernels exist for."""
        return tuple(self._backend.catalog.operations)

    @cached_property
    def measurements(self) -> Measurements | None:
        """Peaks and bandwidths of this machine, measured once; None if the backend has none."""
        told = self._backend.diagnostics
        return told.measure(self._environment) if told is not None else None

    def policy(self, precision: str = "fp32") -> PolicyEngine:
        """Return the policy of libraries for this target in a precision."""
        made = target_of(self.target, precision).policy(self._environment.level)
        return PolicyEngine(made.catalog, made.levels, self.measurements, self.target)

    def plan_kernel(
        self, op: str, shape: Sequence[int] | None = None, precision: str = "FP32"
    ) -> KernelPlan:
        """Return the kernel that runs for a problem, and why not the others.

        ``op``: ``gemm``, ``conv2d``, ``flash_attention_2`` … (:attr:`operations`), with the sizes
        that ``tracea doctor --help`` lists; without a ``shape``, a default one is assumed.  A
        ``precision`` without kernels falls back, bf16 to fp16 to fp32 and int8 to int16 to fp32;
        the answer says why.  Raises UsageError for an unknown operation or a wrong number of
        sizes.
        """
        wanted, notes = dtype_of(precision), list[str]()
        for used in fallback_dtypes(wanted):
            name = _PRECISIONS.get(used, used)
            levels = target_of(self.target, name).levels
            resolved, note = self._backend.resolve_precision(name, levels)
            if used == "f32" or resolved == name:
                break
            notes.append(note)

        def able(dtype: str) -> bool:
            name = _PRECISIONS.get(dtype, dtype)
            return self._backend.resolve_precision(name, levels)[0] == name

        plan = self.policy(name).plan_kernel(op, shape, used, able)
        notes += [plan.precision_note] if plan.precision_note else []
        return replace(plan, wanted=wanted, precision_note="; ".join(notes))
