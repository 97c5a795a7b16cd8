"""Tune single problems without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracea_graph.commands.tune import TunedModel, tune_model
from tracea_graph.errors import UsageError
from tracea_graph.kernels.program import Schedule
from tracea_graph.onnx_io.single_op_models import SingleOpModel
from tracea_graph.options import Options
from tracea_graph.policy import SearchSpace
from tracea_graph.problem_descriptor import ProblemDescriptor
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.tuning import Listener, Propose, ignore_event

__all__ = ["AutoTuner", "TunedProblem", "tune_problem", "write_problem"]


@dataclass(frozen=True)
class TunedProblem:
    """The tuning result of one problem.

    ``tuned`` holds the results of all kernel calls that compute the problem and have a choice of
    schedules.
    """

    problem: ProblemDescriptor
    tuned: TunedModel

    @property
    def schedule(self) -> Schedule:
        """The schedule of the call that takes the most time."""
        return max(self.tuned.tuned, key=lambda t: t.share).schedule

    @property
    def gain(self) -> float:
        """The gain of the whole problem over untuned schedules."""
        return 1 / (1 - self.tuned.saved)


@dataclass(frozen=True)
class AutoTuner:
    """Tunes problems on this machine; results go to the cache, where optimizing finds them.

        AutoTuner(budget=30).optimize(ProblemDescriptor("gemm", (128, 768, 3072)))

    ``threads`` are the thread counts to tune for (default: 1 and all), ``budget`` is the time
    limit of one problem in seconds, ``within`` is a search space whose axes replace the backend's:
    ``SearchSpace().tile_m([64, 128]).tile_n([32, 48])``.
    """

    threads: Sequence[int] = ()
    budget: float = 60.0
    precision: str = "fp32"
    within: SearchSpace | None = None
    options: Options = field(default_factory=Options)

    def optimize(self, problem: ProblemDescriptor) -> TunedProblem:
        """Return the best schedule found for a problem.

        Raises UsageError if the problem's kernel calls have no choice of schedules, or if the
        problem is too small to tune; BuildError without a working compiler.
        """
        options = replace(
            self.options, threads=tuple(self.threads), budget=self.budget,
            precision=self.precision,
        )  # fmt: skip
        return tune_problem(problem, options, within=self.within)


def tune_problem(
    problem: ProblemDescriptor,
    options: Options,
    *,
    lost_after: float = 60.0,
    within: SearchSpace | None = None,
    listen: Listener = ignore_event,
    propose: Propose = lambda case, ranked: ranked,
) -> TunedProblem:
    """Tune the kernel calls that a problem is compiled to under ``options``.

    The other parameters are those of :func:`~tracea_graph.commands.tune.tune_model`.  Raises
    UsageError if there is nothing to tune, BuildError without a working compiler.
    """
    with ScratchFolder("problem") as folder:
        path = Path(folder, f"{problem.kind}.onnx")
        write_problem(problem, path)
        found = tune_model(
            path, replace(options, keep="all", effort="thorough"), lost_after=lost_after,
            min_gain=0.0, selective=True, within=within, listen=listen, propose=propose,
        )  # fmt: skip
    if not found.counts:
        raise UsageError(f"{problem} has no kernel call that takes a schedule")
    if not found.tuned:
        raise UsageError(f"{problem} is too small to tune: its calls take less than 3 µs")
    return TunedProblem(problem, found)


def write_problem(problem: ProblemDescriptor, path: Path) -> None:
    """Write a model that computes only the problem.

    Raises UsageError if the channels of a convolution do not divide into its groups, or if its
    kernel is larger than the padded image.
    """
    number, kind = problem.number, problem.kind
    if kind == "attention":
        batch, heads, queries, keys, head = problem.sizes
        causal = bool(number("causal"))
        return SingleOpModel().attention(batch, heads, queries, keys, head, causal, path)
    if kind == "chain":
        rows, columns = problem.sizes
        return SingleOpModel().chain(rows, columns, number("operands"), path)
    if kind == "int8":
        m, n, k = problem.sizes
        return SingleOpModel().integers(m, n, k, path)
    if kind == "int4":
        m, n, k = problem.sizes
        return SingleOpModel().codes(m, n, k, number("block"), path)
    made, bias = SingleOpModel(str(problem["epilogue"])), bool(number("bias"))
    if kind == "gemm":
        m, n, k = problem.sizes
        return made.gemm(m, n, k, bias, path)
    if kind == "sparse":
        m, n, k = problem.sizes
        zeros = number("zeros") / 100
        return made.gemm(m, n, k, bias, path, zeros=zeros, block=number("block"))
    x, kernel, stride = problem.sizes[:4], number("kernel"), number("stride")
    groups = x[1] if kind == "depthwise" else number("groups")
    out = x[1] if kind == "depthwise" else number("filters")
    if x[1] % groups or out % groups:
        raise UsageError(
            f"{problem}: {x[1]} channels and {out} filters do not divide into {groups} groups"
        )
    pad = kernel // 2 if number("pad") < 0 else number("pad")
    if min(x[2:]) + 2 * pad < kernel:
        raise UsageError(f"{problem}: the kernel is larger than the padded image")
    return made.conv(x, (out, x[1] // groups, kernel, kernel), stride, pad, bias, path)
