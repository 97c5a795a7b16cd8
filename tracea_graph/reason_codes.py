"""Reasons for decisions: each is a code for programs with a sentence for people.

Sentences may be reworded at any time; codes are part of the JSON Schemas.  A plain sentence that a
rule returns counts as :attr:`Code.PATTERN_MISMATCH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tracea_graph.errors import WorkerCrash

__all__ = [
    "EXPECTED",
    "VERDICTS",
    "Code",
    "Reason",
    "code_of",
    "not_constant_reason",
    "other_readers_reason",
    "out_of_range_reason",
    "run_failure_reason",
    "unsuited_reason",
]  # fmt: skip


class Code(StrEnum):
    """Codes of reasons, grouped by subject."""

    # a group that was kept
    FASTER = "faster"
    FASTER_NODES = "faster-nodes"
    FASTER_TOGETHER = "faster-together"
    UNMEASURED = "unmeasured"
    FORMED_LATER = "formed-later"
    NOT_SEPARABLE = "not-separable"
    # a group that was dropped
    NOT_FASTER = "not-faster"
    SLOWER = "slower"
    OUT_OF_BUDGET = "out-of-budget"
    OUT_OF_TOLERANCE = "out-of-tolerance"
    NEEDS_DROPPED = "needs-dropped"
    ORIGINAL_KEPT = "original-kept"
    FAILED_TO_RUN = "failed-to-run"
    CRASHED = "crashed"
    # a rule's outcome
    APPLIED = "applied"
    RAISED = "raised"
    # a rule that did not apply
    PATTERN_MISMATCH = "pattern-mismatch"
    NOT_APPLICABLE = "not-applicable"
    OTHER_READERS = "other-readers"
    NOT_CONSTANT = "not-constant"
    UNSUPPORTED_DTYPE = "unsupported-dtype"
    UNKNOWN_SHAPE = "unknown-shape"
    TOO_MANY_OPERANDS = "too-many-operands"
    DENSE_WEIGHTS = "dense-weights"
    OTHER_FORM = "other-form"
    OUT_OF_RANGE = "out-of-range"
    # an operator that no rule considered
    NO_RULE = "no-rule"
    NOTHING_TO_COMPUTE = "nothing-to-compute"
    # a proposal that was rejected
    SUPERSEDED = "superseded"
    NAME_CLASH = "name-clash"
    NO_KERNEL = "no-kernel"
    IN_LOOP = "in-loop"
    EXCLUDED = "excluded"
    NO_PREDICTED_GAIN = "no-predicted-gain"
    ERROR_BUDGET = "error-budget"
    CYCLE = "cycle"
    # the outcome of a run
    IMPROVED = "improved"
    NO_REWRITE = "no-rewrite"
    INCONCLUSIVE = "inconclusive"
    LOCKED = "locked"
    UNSUPPORTED_MODEL = "unsupported-model"


EXPECTED = frozenset((Code.NOT_APPLICABLE, Code.DENSE_WEIGHTS, Code.OTHER_FORM))
"""Codes of expected misses, such as weights without zeros: summaries leave them out."""

VERDICTS: Mapping[Code, str] = MappingProxyType(
    {
        Code.FASTER: "kept",
        Code.FASTER_NODES: "kept: its own nodes are faster",
        Code.FASTER_TOGETHER: "kept: faster with others",
        Code.UNMEASURED: "kept, not timed",
        Code.FORMED_LATER: "kept: formed after other rewrites were dropped",
        Code.NOT_SEPARABLE: "kept: no candidate without it could be timed",
        Code.NOT_FASTER: "dropped: no clear gain",
        Code.SLOWER: "dropped: slower",
        Code.OUT_OF_BUDGET: "dropped: the budget ran out",
        Code.OUT_OF_TOLERANCE: "dropped: out of tolerance",
        Code.NEEDS_DROPPED: "dropped: it needs rewrites that were dropped",
        Code.ORIGINAL_KEPT: "dropped with all other rewrites",
        Code.FAILED_TO_RUN: "dropped: it failed to run",
        Code.CRASHED: "dropped: it crashed",
    }
)
"""Short descriptions of verdicts on groups."""


class Reason(str):
    """A sentence with a code.  String methods return plain ``str`` without the code."""

    __slots__ = ("code",)
    code: Code

    def __new__(cls, text: str, code: Code) -> Reason:
        made = super().__new__(cls, text)
        made.code = code
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Reason, ("".join(self), self.code)

    def __str__(self) -> str:
        return self  # keeps the code of an exception's message


def run_failure_reason(text: str, error: Exception) -> Reason:
    """Return ``text`` and an error of a run as one reason.

    Its code says whether the worker process crashed or only the run failed.
    """
    code = Code.CRASHED if isinstance(error, WorkerCrash) else Code.FAILED_TO_RUN
    return Reason(f"{text}: {error}", code)


def code_of(reason: str, default: Code = Code.PATTERN_MISMATCH) -> Code:
    """Return the code of a reason; ``default`` for a sentence without one."""
    return reason.code if isinstance(reason, Reason) else default


def out_of_range_reason(
    value: str, largest: float, dtype: str, least: float, most: float
) -> Reason | None:
    """Return the reason that a value does not fit into a type; None if it does.

    ``largest`` is its largest measured magnitude, 0 if none was measured; ``least`` and ``most``
    are the magnitudes between which the type keeps its precision.
    """
    if largest > most:
        why = f"{value!r} reaches {largest:.1e}, above {dtype}'s {most:.1e}"
        return Reason(why, Code.OUT_OF_RANGE)
    if 0.0 < largest < least:
        why = f"{value!r} is at most {largest:.1e}, which {dtype} rounds coarsely"
        return Reason(why, Code.OUT_OF_RANGE)
    return None


def other_readers_reason(value: str) -> Reason:
    """Return the reason that a value inside a pattern is also read outside it."""
    return Reason(f"{value!r} has other readers", Code.OTHER_READERS)


def unsuited_reason(text: str) -> Reason:
    """Return ``text`` as the reason that a rule is not meant for a site."""
    return Reason(text, Code.NOT_APPLICABLE)


def not_constant_reason(value: str) -> Reason:
    """Return the reason that an operand is not known before the model runs."""
    return Reason(f"{value!r} is not constant", Code.NOT_CONSTANT)
