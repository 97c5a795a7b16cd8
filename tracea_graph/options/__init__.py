"""Every option of an optimization, each declared once.

From these records follow the flags of all commands and their help, the keys of a file for
``--config``, the checks of values given in Python, what a lock keeps, and the
command-line reference ``docs/cli.md`` (``make docs`` writes it).  Adding an option is adding one;
whoever uses it reads its field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracea_graph.check.distance import Elementwise, ErrorLimits
from tracea_graph.config import TOLERANCE, Environment, Prune, Window, usable_processors
from tracea_graph.errors import UsageError
from tracea_graph.options import values
from tracea_graph.options.files import CONFIG, patterns_of
from tracea_graph.options.record import Option, Use, declared, option
from tracea_graph.target import read_environment, targets

__all__ = ["ALONE", "OPTIONS", "STAGES", "Option", "Options", "values"]

STAGES = ("import", "passes", "lower", "emit")
"""What a model can be stopped after."""

_DAY = 86400.0
_MEASURING, _REWRITING, _LOCKING = "measuring", "rewriting", "locking"
_WRITING, _PRINTING = "writing", "printing"

_NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "be 0 or more")
_SIZES = "sizes of symbolic dimensions; may be repeated"
_MADE_UP = "of the synthesised inputs"


@dataclass(frozen=True)
class Options:
    """What a caller may choose; ``docs/cli.md`` says what each means.

    Raises UsageError for values that make no sense.
    """

    output: Path | None = option(
        None, short="o", made=Path, metavar="OUT", place=True,
        help="OUT.onnx or a folder (default: MODEL.tracea.onnx)",
        more="where to write, a file or a folder (default: `MODEL.tracea.onnx` beside the model)",
        also={"strip": Use("where to write", metavar="OUT.onnx", required=True)},
    )  # fmt: skip
    effort: str = option(
        "default", choices=("quick", "default", "thorough"), group=_MEASURING,
        help="quick: judge all rewrites together; thorough: search for better blocking too",
        more="`quick` times all rewrites together and keeps all or none; `thorough` also searches "
        "for better blocking of products and convolutions; otherwise what was found earlier is "
        "used",
    )  # fmt: skip
    threads: tuple[int, ...] = option(
        (), parse=values.threads, metavar="N[,M]", join=",", group=_MEASURING,
        help="thread counts to time (default: 1 and all cores)",
        more="thread counts to time with (default: 1 and all cores)",
        also={
            "bench": Use("thread counts (default: 1 and all; profile: 1)", group=_MEASURING),
            "verify": Use("default: all cores", metavar="N"),
            "tune": Use("default: 1 and all"),
        },
    )  # fmt: skip
    shapes: tuple[dict[str, int], ...] = option(
        (), name="shape", parse=values.shape, metavar="NAME=N[,NAME=N]", many=True,
        group=_MEASURING,
        help="sizes of symbolic dimensions to time with; may be repeated",
        more="sizes of symbolic dimensions to plan for and to time with; may be repeated. A net "
        "that takes images of any size is planned for 224×224 otherwise; whether its 3×3 filters "
        "are transformed is in float32 decided in every run",
        also={
            "bench": Use(_SIZES, group=_MEASURING), "verify": Use(_SIZES), "tune": Use(_SIZES),
            "inspect": Use("sizes of symbolic dimensions to predict for"),
            "explain": Use("sizes of symbolic dimensions to predict for"),
        },
    )  # fmt: skip
    data: Path | None = option(
        None, parse=Path, metavar="FILE.npz", group=_MEASURING,
        help="real inputs to verify and time with (of many, three are timed); or a folder with a "
        "NAME.npz for NAME.onnx",
        more="real inputs to verify with, all of them; three of many are timed, unless `--shape` "
        "says what to time. May be a folder: of several models, `NAME.npz` for `NAME.onnx`. With "
        "`--low-rank` or `--prune` what to calibrate with",
        also={"bench": Use("real inputs", group=_MEASURING), "verify": Use("real inputs")},
    )  # fmt: skip
    holdout: Path | None = option(
        None, parse=Path, metavar="FILE.npz", group=_MEASURING,
        help="inputs to measure --low-rank and --prune with (default: every fifth of --data)",
        more="inputs, or a folder of such, the error of smaller matrices is reported of (default: "
        "every fifth set of `--data`)",
    )  # fmt: skip
    metric: str = option(
        "", metavar="FILE.py:FUNC", group=_MEASURING,
        help="FUNC(outputs, originals) is the error --max-error limits, for --low-rank, --prune",
        more="`FUNC(outputs, originals)`, both dicts of arrays, is the error of smaller matrices, "
        "in place of that of `max|y|`",
    )  # fmt: skip
    budget: float = option(
        180.0, parse=values.seconds, metavar="SECONDS", group=_MEASURING, locked=True,
        must=(lambda value: 0 < value < math.inf, "be a number of seconds above 0"),
        help="longest time to plan, verify and measure, such as 90, 90s or 5m: what is not "
        "finished by then is left out (default: 180)",
        more="the longest time a run may take, `90`, `90s` or `5m` (default: 180; clear cases end "
        "sooner): what is not planned, verified and measured by then is left out, and the report "
        "says so. Compiling, which is done once for a machine, and choosing smaller matrices come "
        "on top",
        also={
            "bench": Use("longest time to retune (default: 60)", 60.0, "retune"),
            "tune": Use("time to measure, such as 60, 60s or 5m (default: 60)", 60.0),
            "tune worker": Use("work so long", 30 * _DAY),
        },
    )  # fmt: skip
    verify: bool = option(
        True, name="no-verify", flag=True, group=_MEASURING,
        help="do not compare outputs with the original's",
    )  # fmt: skip
    max_error: float | None = option(
        None, parse=float, metavar="EPS", group=_MEASURING, must=_NOT_NEGATIVE, locked=True,
        help="accepted error, as a share of max|y|",
        more="accepted error, as a share of `max|y|` (default: 1e-4, or 1e-2 where precision is "
        "given up)",
        also={"verify": Use("accepted error, share of max|y|")},
    )  # fmt: skip
    rtol: float | None = option(
        None, parse=float, metavar="X", group=_MEASURING, must=_NOT_NEGATIVE,
        help="accepted relative error, element by element",
        also={"verify": Use("accepted relative error of each element")},
    )  # fmt: skip
    atol: float | None = option(
        None, parse=float, metavar="X", group=_MEASURING, must=_NOT_NEGATIVE,
        help="accepted absolute error, element by element",
        also={"verify": Use("accepted absolute error of each element")},
    )  # fmt: skip
    seed: int = option(
        0, parse=int, metavar="N", group=_MEASURING, must=_NOT_NEGATIVE,
        help="seed of the synthesised inputs",
        also={
            "bench": Use(_MADE_UP, group=_MEASURING), "verify": Use(_MADE_UP),
            "tune": Use("of the sampler and the inputs"), "tune worker": Use("of the sampler"),
        },
    )  # fmt: skip
    storage: str = option(
        "", metavar="URL", group=_MEASURING, place=True,
        help="share tuning studies: postgresql://, mysql://, sqlite:/// or grpc:// (optuna's)",
        more="share what `--effort thorough` measures with other machines",
        also={
            "tune": Use("share the trials with other machines"),
            "tune worker": Use("postgresql://, mysql://, grpc:// …", required=True),
        },
    )  # fmt: skip
    patterns: tuple[Mapping[str, Any], ...] = option(
        (), name=CONFIG, parse=patterns_of, metavar="FILE.yaml", group=_MEASURING, in_file=False,
        help="read long options, and hints per pattern, from a file",
        more="long options, by their whole names, from a file, and hints on schedules per pattern",
        also={"tune": Use()},
    )  # fmt: skip

    keep: str = option(
        "faster", choices=("faster", "all"), group=_REWRITING, locked=True,
        help="faster: what was measured faster; all: all that passes its checks, nothing timed",
        more="keep what was measured faster, or all that passes its checks, untimed",
    )  # fmt: skip
    precision: str = option(
        "fp32", choices=("fp32", "fp16", "bf16", "bf16-weights", "bf16x2", "int16"),
        group=_REWRITING, locked=True,
        help="fp16, on GPUs: products and what lies between them in fp16, sums in fp32; "
        "bf16: products and convolutions in bf16, sums in fp32, products in int16 where that "
        "is too coarse; bf16-weights: weights only; bf16x2: both of sums of two numbers in "
        "bf16, on matrix tiles; int16: products in scaled 16-bit integers",
        more="on GPUs products, and what lies between them, in fp16 with sums in fp32; "
        "products, convolutions and attention in bf16 with sums in fp32, products and "
        "convolutions in 16-bit integers where bf16 is too coarse (a processor without it keeps "
        "fp32 and says so); only weights in bf16; products and convolutions of sums of two "
        "numbers in bf16, three for one: on matrix tiles several times as fast as fp32 and "
        "nearly as exact; or products and convolutions in 16-bit integers, a scale for each row "
        "and column, image and filter: as fast as bf16 without matrix tiles, and about eight "
        "times as exact",
        also={
            "tune": Use("as of the result"), "inspect": Use("as of the result"),
            "explain": Use("as of the result"),
        },
    )  # fmt: skip
    windows: tuple[Window, ...] = option(
        (), name="window", parse=values.window, metavar="[A-B:]N[+G]", many=True, group=_REWRITING,
        help="attention sees N keys a query, and the first G; in layers A to B, or all",
        more="attention sees N keys a query and the first G keys (the last N in causal models, "
        "else half of them on each side), in layers A to B or all; of several for one layer the "
        "last counts; changes what the model computes",
    )  # fmt: skip
    low_rank: float | None = option(
        None, parse=float, metavar="EPS", group=_REWRITING,
        help="two factors for a matrix, where its product's own relative error is at most EPS",
        more="matrices become two factors, of ranks up to which a layer's own relative error is "
        "EPS; 1 leaves it to `--max-error`",
    )  # fmt: skip
    prune: Prune | None = option(
        None, parse=values.prune, metavar="SPEC", group=_REWRITING,
        help="zeros in matrices: 0.6, 2:4 or block:16x4:0.7 (columns x rows of the block); "
        "channels:0.5 for up to half of the channels between two products",
        more="zeros in matrices: a share of each column (`0.6`), all but 2 of 4 (`2:4`), or of "
        "blocks of 16 columns × 1, 4, 16, 32 or 64 rows (`block:16x4:0.7`); `channels:0.5`: up to "
        "half of the channels between two products go, with `--low-rank`, which the other "
        "products then get",
    )  # fmt: skip
    only: tuple[str, ...] = option(
        (), metavar="RULE", many=True, group=_REWRITING, locked=True,
        help="use this rule; repeatable", more="use only this rule; may be repeated",
        also={"inspect": Use(), "explain": Use()},
    )  # fmt: skip
    skip: tuple[str, ...] = option(
        (), metavar="RULE", many=True, group=_REWRITING, locked=True,
        help="not this rule; repeatable", more="do not use this rule; may be repeated",
        also={"inspect": Use(), "explain": Use()},
    )  # fmt: skip
    freeze_initializers: bool = option(
        False, flag=True, group=_REWRITING, locked=True,
        help="make constants of initializers that inputs may override; those inputs go",
        more="weights that are listed as inputs too, and so could be fed, become constants; those "
        "inputs go. Without it kernels hold such weights where that pays: every run compares what "
        "is fed with the defaults, and runs the original's nodes where it differs",
        also={"inspect": Use(), "explain": Use()},
    )  # fmt: skip
    custom_ops: bool = option(
        True, name="no-custom-ops", flag=True, group=_REWRITING, locked=True,
        help="plain ONNX only, no library", more="pure ONNX: no library, no custom ops",
    )  # fmt: skip
    target: str = option(
        "host", values=targets, group=_REWRITING, more="the processor to write for",
        also={"tune": Use(), "inspect": Use(), "explain": Use()},
    )  # fmt: skip

    save_lock: Path | None = option(
        None, parse=Path, metavar="PLAN.json", group=_LOCKING, place=True,
        help="write all decisions to this file", more="write every decision of this run to a file",
    )  # fmt: skip
    use_cache: bool = option(
        True, name="no-cache", flag=True, group=_LOCKING, place=True, was=("fresh",),
        help="tune and time again, even if an equal earlier run has decided",
    )  # fmt: skip
    lock: Path | None = option(
        None, parse=Path, metavar="PLAN.json", group=_LOCKING, place=True,
        help="apply the decisions of this file: nothing is tuned or timed, outputs are verified",
        more="apply such decisions: nothing is tuned or timed, outputs are still verified",
    )  # fmt: skip

    require_library: bool = option(
        False, flag=True, group=_WRITING, locked=True,
        help="no bodies: loading needs the library",
        more="write no function bodies: loading then needs the library",
    )  # fmt: skip
    prepack: bool = option(
        True, name="no-prepack", flag=True, group=_WRITING, locked=True, was=("plain-weights",),
        help="store weights as the original does, not in the order kernels read them",
    )  # fmt: skip
    single_file: bool = option(
        False, flag=True, group=_WRITING, locked=True,
        help="keep all weights inside the .onnx", also={"strip": Use("keep all weights in it")},
    )  # fmt: skip
    keep_sources: Path | None = option(
        None, parse=Path, metavar="DIR", group=_WRITING, place=True,
        help="write the generated sources here",
    )  # fmt: skip
    until: str | None = option(
        None, choices=STAGES, group=_WRITING, place=True,
        help="stop after this stage and show its result",
    )  # fmt: skip
    cache: Path | None = option(
        None, parse=Path, metavar="DIR", group=_WRITING, place=True,
        help="where compiled kernels are kept (default: ~/.cache/tracea-graph)",
        also={
            command: Use("default: TRACEA_CACHE, else ~/.cache/tracea-graph")
            for command in (
                "tune", "tune worker", "tune report", "cache ls", "cache export", "cache import",
                "cache prune",
            )
        },
    )  # fmt: skip

    def __post_init__(self) -> None:
        for keyword, one in OPTIONS.items():
            one.check(getattr(self, keyword))
        if self.require_library and not self.custom_ops:
            raise UsageError("--require-library and --no-custom-ops contradict each other")

    @property
    def tolerance(self) -> float:
        """The error accepted, as a share of ``max|y|``."""
        exact = self.precision in ("fp32", "bf16x2") and not (self.windows or self.compresses)
        usual = TOLERANCE.exact if exact else TOLERANCE.lossy
        return usual if self.max_error is None else self.max_error

    @property
    def limits(self) -> ErrorLimits:
        """What outputs may be off by: what was asked for, and nothing else then."""
        given = self.rtol is not None or self.atol is not None
        by_element = Elementwise(self.rtol or 0.0, self.atol or 0.0) if given else None
        return ErrorLimits(self.tolerance, self.max_error is not None, elementwise=by_element)

    @property
    def compresses(self) -> bool:
        """True if weights may become others."""
        return self.low_rank is not None or self.prune is not None

    @property
    def environment(self) -> Environment:
        """The environment, with the cache these options name."""
        return read_environment(self.cache)

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Thread counts to time: those given, or one and all processors this process may use."""
        return self.threads or tuple(dict.fromkeys((1, usable_processors())))


OPTIONS: Mapping[str, Option] = MappingProxyType(declared(Options))
"""By keyword."""

ALONE: Mapping[str, Option] = MappingProxyType(
    {
        "report": Option(
            "report", None, "write the report as a page", parse=Path, metavar="FILE.html",
            group=_WRITING,
        ),
        "json": Option(
            "json", False, "print the report as JSON, a list for several models", flag=True,
            group=_PRINTING,
            also={
                **dict.fromkeys(("explain", "verify", "doctor", "tune", "cache ls"),
                                Use("print JSON")),
                "bench": Use("print JSON", group=_PRINTING),
                "inspect": Use("print networkx's node-link JSON"),
                "tune report": Use("print all rows as JSON"),
            },
        ),
        "explain": Option(
            "explain", False, "say what became of every operator, and why", flag=True,
            more="also say what became of every operator and why, with measured gains",
            group=_PRINTING,
        ),
        "quiet": Option(
            "quiet", False, "print errors only", short="q", flag=True, group=_PRINTING,
            also={"tune": Use(), "tune worker": Use()},
        ),
        "verbose": Option(
            "verbose", 0, "print reasons, rules and near misses", short="v", counted=True,
            more="print reasons, rules and near misses; a traceback where something goes wrong",
            group=_PRINTING,
            also={"bench": Use("profile: every node with its origins", group=_PRINTING)},
        ),
    }
)  # fmt: skip
"""Those of the command line alone."""
