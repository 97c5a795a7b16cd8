"""Exceptions that the package raises on purpose.

    TraceaError                      exit code
    ├── UsageError                   2   options that contradict each other, unusable paths
    ├── ModelError                   2   the input cannot be read as a valid ONNX model
    ├── VerifyError                  3   a result is outside its tolerance
    ├── BuildError                   4   no compiler, or it failed
    ├── WorkerError                  4   a worker process died or exceeded its time limit
    ├── OutOfTime                    4   the budget ran out; caught: unfinished work is dropped
    ├── OutdatedDecisionsError       70  caught: the run begins anew
    ├── GraphError                   70  an internal invariant broke; names the pass
    └── RuleError                    70  a rule raised; ends a run only with TRACEA_STRICT=1

A message is one sentence: what, where, what to try.  Unsupported operators are not errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

__all__ = [
    "BuildError",
    "CycleError",
    "GraphError",
    "ModelError",
    "OutOfTime",
    "OutdatedDecisionsError",
    "RejectedSizesError",
    "RuleError",
    "RuleErrorContext",
    "StillReadError",
    "TraceaError",
    "UsageError",
    "VerifyError",
    "WorkerError",
    "did_you_mean",
]

_NONE: Mapping[str, str] = MappingProxyType({})


def did_you_mean(word: str, known: Iterable[str], renamed: Mapping[str, str] = _NONE) -> str:
    """Return the end of a sentence that suggests a similar known word; empty if there is none.

    ``renamed`` maps earlier spellings to current ones.
    """
    found = get_close_matches(word, [*known, *renamed], n=1)
    return f"; did you mean {renamed.get(found[0], found[0])}?" if found else ""


class TraceaError(Exception):
    """Base class of errors raised on purpose; ``exit_code`` is the command's exit code."""

    exit_code = 1


class UsageError(TraceaError):
    """Options that contradict each other, or unusable paths."""

    exit_code = 2


class OutdatedDecisionsError(TraceaError):
    """Cached decisions are no longer valid and must be made again."""

    exit_code = 70


class RejectedSizesError(OutdatedDecisionsError):
    """The model rejects inputs of the sizes that were guessed; it accepts ``sizes``."""

    def __init__(self, message: str, sizes: Mapping[str, int]) -> None:
        super().__init__(message)
        self.sizes = sizes


class ModelError(TraceaError):
    """The input is not a readable, valid ONNX model."""

    exit_code = 2


class VerifyError(TraceaError):
    """An optimized model is outside its tolerance and no rewrite is the culprit."""

    exit_code = 3


class BuildError(TraceaError):
    """The library could not be built; carries the command and the end of its stderr."""

    exit_code = 4

    def __init__(self, message: str, command: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.stderr = stderr


class WorkerError(TraceaError):
    """A worker process died, sent an invalid answer, or exceeded its time limit."""

    exit_code = 4


class WorkerCrash(WorkerError):
    """A worker process died while it ran a model."""


class OutOfTime(TraceaError):
    """The budget ran out before a step was finished; the step's partial result is discarded."""

    exit_code = 4


class GraphError(TraceaError):
    """An internal invariant of the graph broke."""

    exit_code = 70


class RuleError(TraceaError):
    """The ``rule`` raised an unexpected exception, which is the cause."""

    exit_code = 70

    def __init__(self, rule: str, cause: Exception) -> None:
        self.raised = f"{type(cause).__name__}: {cause}"
        super().__init__(f"rule {rule!r} raised {self.raised}")
        self.rule = rule


class RuleErrorContext:
    """Context manager that turns any exception into a RuleError naming ``rule``.

    ``rule`` may be reassigned inside the block, which is cheaper than entering a block per rule.
    """

    def __init__(self, rule: str = "") -> None:
        self.rule = rule

    def __enter__(self) -> RuleErrorContext:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(
            error, RuleError | OutOfTime | MemoryError
        ):
            raise RuleError(self.rule, error) from error


class StillReadError(GraphError):
    """A replacement would remove a ``value`` that other nodes read."""

    def __init__(self, value: str, readers: str) -> None:
        super().__init__(f"value {value!r} is still read by {readers}")
        self.value = value


class CycleError(GraphError):
    """A replacement would depend on its own result."""
