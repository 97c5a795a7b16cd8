"""Measure the planner's regret: ``python -m models.regret [MODEL…] [--write FILE.md|-]``.

A model's default result is compared with results that leave out a rule that fired, or two rules
that met at one operator, or every rule that a search over the cost model would leave out, and with
the result of a longer search.  Regret is how much slower the default is than the best of them; the
rules that the best leaves out are to blame.

    python -m models.regret                        # the zoo, the structured set
    python -m models.regret few-dead ranks         # some of these
    python -m models.regret ../models/*.onnx       # any files
    python -m models.regret few-dead --predicted   # by the cost model, without compiling or timing

Variants whose plan equals another's are dropped; of the others the ``--most`` fastest by
prediction are built.  Each is timed against the default in interleaved pairs, and the winner again
in new pairs, because the best of many noisy ratios is too good.  Only a ratio whose 99 % lower
bound exceeds 1 counts.  With ``--write`` the table goes between the marker lines of a file.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import combinations
from pathlib import Path

from models.bench import RESULTS
from models.make import available, make
from models.score import marks, replace_table
from models.structured import STRUCTURED, make_structured
from tracea_graph import Options, api
from tracea_graph.check.paired_benchmark import ModelWithLibrary, PairedBenchmark
from tracea_graph.check.timing_statistics import Ratio
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import TraceaError, UsageError
from tracea_graph.onnx_io import Model, load
from tracea_graph.options import OPTIONS, value_parsers
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.pipeline.model_inputs import gather_inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.target import target_of

__all__ = ["Regret", "Variant", "main", "measured", "met", "predicted", "table", "variants"]

TOOL = "models.regret"
_LONGER = 4.0
"""Factor of the budget of the longer search."""
_ROUNDS = 3
"""Rules that the search over the cost model leaves out beyond the best variant's."""


@dataclass(frozen=True)
class Variant:
    """A way to optimize a model: without some rules, or with a ``longer`` search."""

    skip: frozenset[str] = frozenset()
    longer: bool = False

    def __str__(self) -> str:
        if self.longer:
            return "a shorter search"
        return " + ".join(sorted(self.skip)) or "nothing"

    def options(self, default: Options) -> Options:
        skip = (*default.skip, *sorted(self.skip))
        if self.longer:
            return replace(default, effort="thorough", budget=_LONGER * default.budget)
        return replace(default, skip=skip)


DEFAULT = Variant()


@dataclass(frozen=True)
class Regret:
    """A model's default result against the best variant.

    ``ratios`` are the default's time over the best variant's, by thread count (one prediction is
    exact); ``ms`` the default's times.  ``tried`` counts the variants compared, ``left`` those
    that prediction ruled out.  ``failed`` says why there are no numbers.
    """

    model: str
    blame: str = ""
    ms: tuple[float, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    tried: int = 0
    left: int = 0
    failed: str = ""

    @property
    def loss(self) -> float:
        """Regret as a share of the best time: the geometric mean over thread counts, at least 0.

        0 unless the best variant is certainly faster at some thread count.
        """
        if not any(r.low > 1.0 for r in self.ratios):
            return 0.0
        return max(0.0, _mean([r.median for r in self.ratios]) - 1.0)

    def cells(self) -> tuple[str, ...]:
        if self.failed:
            return self.model, f"failed: {self.failed}", "", "", "", ""
        return (
            self.model,
            " / ".join(f"{ms:.3g}" for ms in self.ms),
            f"{self.loss:.1%}",
            "; ".join(f"{r.low:.3f}–{r.high:.3f}" for r in self.ratios),
            self.blame if self.loss else "",
            f"{self.tried} of {self.tried + self.left}",
        )


def _mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0


# ---- variants --------------------------------------------------------------------------


def met(trace: DecisionTrace) -> frozenset[frozenset[str]]:
    """Return the pairs of rules that were applied to one operator of the model."""
    applied: dict[str, set[str]] = {}
    for entry in trace.entries:
        if entry.verdict == "applied":
            for node in entry.nodes:
                applied.setdefault(node, set()).add(entry.rule)
    pairs = (combinations(sorted(rules), 2) for rules in applied.values())
    return frozenset(frozenset(pair) for some in pairs for pair in some)


@dataclass
class _Plans:
    """Predicted times of plans without some rules, each made once."""

    model: Model
    options: Options
    planner: Callable[[Options], Planner]
    _us: dict[frozenset[str], tuple[float, str]] = field(default_factory=dict)

    def __call__(self, skip: frozenset[str]) -> tuple[float, str]:
        """Return the predicted µs without these rules, and a description of the plan."""
        if skip not in self._us:
            planner = self.planner(Variant(skip).options(self.options))
            graph = planner.plan().graph
            regions = [(r.op, r.params, r.operands, r.results) for r in graph.regions()]
            self._us[skip] = sum(planner.cost(graph, r) for r in graph.regions()), repr(regions)
        return self._us[skip]


def variants(
    model: Model, options: Options, planner: Callable[[Options], Planner]
) -> tuple[float, list[tuple[float, Variant]]]:
    """Return the default's predicted µs, and those of variants with other plans, fastest first."""
    plans, first = _Plans(model, options, planner), planner(options)
    trace, may = first.plan().trace, first.rules
    default, plan = plans(frozenset())
    single = [frozenset((rule,)) for rule in trace.applied() if rule in may]
    pairs = sorted((pair for pair in met(trace) if pair <= may), key=sorted)
    seen, found = {plan}, list[tuple[float, Variant]]()

    def add(skips: Iterable[frozenset[str]]) -> None:
        for skip in skips:
            us, plan = plans(skip)
            if plan not in seen:
                seen.add(plan)
                found.append((us, Variant(skip)))
        found.sort(key=lambda one: one[0])

    add((*single, *pairs))
    for _ in range(_ROUNDS):  # leave out more while that is predicted to help
        if not found or found[0][0] >= default:
            break
        before, (_, best) = found[0][0], found[0]
        add(best.skip | one for one in single if not one <= best.skip)
        if found[0][0] >= before:
            break
    return default, found


# ---- comparison ------------------------------------------------------------------------


def predicted(path: Path, options: Options) -> Regret:
    """Return a model's regret by the cost model of a fixed machine; nothing is compiled."""
    model = load(path)
    sizes = gather_inputs(model, options).timed[0].symbols
    cost, scan = CostModel(Machine(), sizes), WeightScan()
    us, found = variants(
        model, options, lambda chosen: Planner(model.graph, chosen, sizes, cost=cost, scan=scan)
    )
    least, best = min([(us, DEFAULT), *found], key=lambda one: one[0])
    ratio = Ratio(us / least, us / least, us / least, 1, us, least, us, least)
    return Regret(path.stem, str(best), (us / 1e3,), (ratio,), len(found))


def measured(path: Path, options: Options, most: int, seconds: float) -> Regret:
    """Return a model's regret by the clock; ``seconds`` bounds each comparison."""
    model = load(path)
    inputs, target = gather_inputs(model, options), target_of(options.target, options.precision)
    sizes = inputs.timed[0].symbols
    scan = WeightScan()
    _, found = variants(
        model, options, lambda chosen: Planner(model.graph, chosen, sizes, target, scan=scan)
    )
    chosen = [*(variant for _, variant in found[:most]), Variant(longer=True)]
    counts = options.thread_counts
    with tempfile.TemporaryDirectory(prefix="tracea-regret-") as name, PairedBenchmark(
        Worker, inputs.timing, counts, math.inf
    ) as bench:  # fmt: skip
        folder = Path(name)
        default = _built(path, options, folder / "default")
        best, ratios = DEFAULT, dict[tuple[int, str], Ratio]()
        results = {DEFAULT: default}
        for index, variant in enumerate(chosen):
            other = _built(path, variant.options(options), folder / str(index))
            results[variant] = other
            speeds = bench.compare_all(default, other, seconds)
            said = ", ".join(f"{r}" for r in speeds.values())
            print(f"  without {variant}: {said}", file=sys.stderr, flush=True)
            if _mean([r.median for r in speeds.values()]) > max(
                1.0, _mean([r.median for r in ratios.values()])
            ):
                best, ratios = variant, speeds
        again = bench.compare_all(default, results[best], seconds)
    first = [again[key] for key in bench.keys if key in again and key[1] == inputs.labels[0]]
    times = tuple(r.a_ms for r in first)
    return Regret(path.stem, str(best), times, tuple(first), len(chosen), len(found[most:]))


def _built(path: Path, options: Options, folder: Path) -> ModelWithLibrary:
    """Optimize a model as a user would, and return the result."""
    folder.mkdir()
    out = folder / "result.onnx"
    report = api.optimize(path, replace(options, output=out, use_cache=False))
    return ModelWithLibrary(out, Path(report.library) if report.library else None)


# ---- table and command line ------------------------------------------------------------


def table(rows: Sequence[Regret], note: str, threads: Sequence[int]) -> str:
    """Return the rows as Markdown, with the geometric mean and the worst, and ``note`` below."""
    counts = "/".join(map(str, threads))
    heads = (
        "model", f"default, ms at {counts} threads", "regret", "bounds of the ratio",
        "better without", "variants compared",
    )  # fmt: skip
    rated = [row for row in rows if not row.failed]
    mean = _mean([1.0 + row.loss for row in rated]) - 1.0
    worst = max((row.loss for row in rated), default=0.0)
    last = (f"geometric mean of {len(rated)}", "", f"{mean:.1%}", "", f"worst {worst:.1%}", "")
    ruler = ("---", "---:", "---:", "---", "---", "---:")
    lines = (heads, ruler, *(row.cells() for row in rows), last)
    return "\n".join([*("| " + " | ".join(cells) + " |" for cells in lines), "", note, ""])


def _paths(names: Sequence[str], folder: Path) -> Iterator[Path]:
    """Make the named models; a name may be a file, or belong to the zoo or the structured set."""
    for name in names:
        if name in STRUCTURED:
            yield make_structured(name, folder)
        elif name in available():
            yield make(name, folder)
        elif Path(name).is_file():
            yield Path(name)
        else:
            known = ", ".join((*STRUCTURED, *available()))
            raise UsageError(f"{name!r} is no file and no model; models are {known}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.regret", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="names or files (default: zoo and structured)")
    add("--predicted", action="store_true", help="compare predicted times; build nothing")
    add("--precision", choices=OPTIONS["precision"].choices, default="fp32")
    add("--keep", choices=("faster", "all"), default="faster")
    add(
        "--budget",
        type=value_parsers.parse_seconds,
        default=60.0,
        help="seconds to decide a variant in",
    )
    add("--seconds", type=value_parsers.parse_seconds, default=20.0, help="for each comparison")
    add("--most", type=int, default=8, help="variants to build, of those by rules")
    add("--threads", type=value_parsers.parse_threads, default=(1, 2), metavar="N[,M]")
    add("--folder", type=Path, help="where to make models (default: a temporary folder)")
    add("--write", default="-", metavar="FILE.md", help=f"such as {RESULTS.name}, or - for none")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the models, print and write the table; 1 if one failed."""
    args = _parser().parse_args(argv)
    target = None if args.write == "-" else Path(args.write)
    options = Options(
        precision=args.precision, keep=args.keep, budget=args.budget, threads=args.threads
    )
    kind = f"{'predicted ' if args.predicted else ''}{args.precision}"
    try:
        if target is not None and marks(kind, TOOL)[0] not in target.read_text("utf-8"):
            raise UsageError(f"{target} lacks the line {marks(kind, TOOL)[0]}")
    except (OSError, UsageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows, names = list[Regret](), args.models or (*STRUCTURED, *available())
    scratch = tempfile.TemporaryDirectory() if args.folder is None else nullcontext(args.folder)
    with scratch as folder:
        try:
            for path in _paths(names, Path(folder)):
                rows.append(_row(path, options, args))
                print(" | ".join(rows[-1].cells()), file=sys.stderr, flush=True)
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
    text = table(rows, _note(args), (1,) if args.predicted else args.threads)
    print(text)
    if target is not None:
        replace_table(target, kind, text, TOOL)
    return 1 if any(row.failed for row in rows) else 0


def _row(path: Path, options: Options, args: argparse.Namespace) -> Regret:
    try:
        if args.predicted:
            return predicted(path, options)
        return measured(path, options, args.most, args.seconds)
    except TraceaError as error:
        return Regret(path.stem, failed=str(error))


def _note(args: argparse.Namespace) -> str:
    if args.predicted:
        return f"By the cost model of a fixed machine; {args.precision}, {date.today()}."
    return (
        f"--keep {args.keep}, {args.precision}, {args.budget:.0f} s a variant, {date.today()}; "
        "paired and interleaved, medians; bounds are 99 %, by thread count."
    )


if __name__ == "__main__":
    sys.exit(main())
