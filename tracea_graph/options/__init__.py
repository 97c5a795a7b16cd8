"""Every option of an optimization, each declared once.

The records define the flags and help of all commands, the keys of files for ``--config``, the
validation of values given in Python, the options that a lock stores, and the command-line
reference ``docs/cli.md`` (written by ``make docs``).  To add an option, add a record; code that
uses it reads the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracea_graph.config import TOLERANCE, AttentionWindow, Environment, PruneSpec
from tracea_graph.errors import UsageError
from tracea_graph.hardware.core_topology import usable_cores
from tracea_graph.options import value_parsers
from tracea_graph.options.config_files import CONFIG, validate_hints
from tracea_graph.options.option_records import Option, Use, option, options_by_keyword
from tracea_graph.target_names import BOTH, TARGETS

if TYPE_CHECKING:
    from tracea_graph.check.output_errors import ErrorLimits

__all__ = ["ALONE", "OPTIONS", "STAGES", "TIMING", "Option", "Options", "value_parsers"]

STAGES = ("import", "passes", "lower", "emit")
"""Stages after which optimization can stop."""

_DAY = 86400.0
_COMMON, _MEASURING, _REWRITING = "most used", "verification and timing", "choice of rewrites"
_COMPRESSING, _DECIDING = "compress weights, within an accepted error", "remembered decisions"
_WRITING, _PRINTING = "files", "printing"
TIMING = "timing"
"""Group of the options with which ``tracea bench`` measures."""

_NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "be 0 or more")
_SIZES = "sizes of symbolic dimensions; may be repeated"
_OWN_OPS = "library of custom ops that the models need; may be repeated"
_MADE_UP = "seed of synthetic inputs (default: 0)"
_PRECISIONS = (
    "fp32", "tf32", "fp16", "bf16", "bf16-weights", "bf16x2", "int16", "int8", "fp8",
    "int4-weights",
)  # fmt: skip
_PRECISION_OF_RESULT = f"precision of the result: {', '.join(_PRECISIONS)}"
_ALONE = [name for name in TARGETS[1:] if not name.startswith(BOTH)]
_CACHE = "default: TRACEA_CACHE, else tracea-graph in XDG_CACHE_HOME or ~/.cache"


@dataclass(frozen=True)
class Options:
    """Options of an optimization; ``docs/cli.md`` describes each.

    Raises UsageError for invalid values.
    """

    output: Path | None = option(
        None, short="o", made=Path, metavar="OUT", place=True, group=_COMMON,
        help="write OUT.onnx, or into a folder (default: MODEL.tracea.onnx)",
        more="where to write, a file or a folder (default: `MODEL.tracea.onnx` beside the model)",
        also={"strip": Use("where to write", metavar="OUT.onnx", required=True)},
    )  # fmt: skip
    target: str = option(
        "host", values=lambda: TARGETS, group=_COMMON, metavar="TARGET",
        help=f"{TARGETS[0]} (default), {', '.join(_ALONE)}; both: {BOTH}cuda…; or platforms, "
        "separated by commas: linux-aarch64, windows-x86_64…",
        more="the processor to write for (default: this machine's CPU). `cpu,cuda`: one library "
        "for both; without a GPU, kernels for this machine's CPU run. For other platforms, the "
        "`ziglang` wheel builds one library each, beside the same model: `linux-aarch64[:neon]`, "
        "`linux-x86_64`, `linux-x86_64-musl`, `linux-aarch64-musl`, `windows-x86_64`, "
        "`windows-aarch64`, `macos-aarch64`, `macos-x86_64`; what cannot run here is not timed",
        also={"tune": Use(), "inspect": Use(), "explain": Use()},
    )  # fmt: skip
    precision: str = option(
        "fp32",
        choices=_PRECISIONS,
        group=_COMMON, locked=True,
        metavar="TYPE",
        help="numbers that matmuls and convolutions multiply, with fp32 sums: fp32 (default), "
        "tf32 or fp8 (for GPUs), fp16 (for GPUs and Arm), bf16, bf16x2 (nearly exact), int16, "
        "int8 (the fastest); bf16-weights or int4-weights: round only the weights",
        more="numbers that matmuls and convolutions multiply; sums stay fp32. `fp16`: for GPUs, "
        "where the values between matmuls are fp16 too, and for Arm, where short sums are, too "
        "(`--target linux-aarch64`). `bf16`: attention uses it too; int16 or fp32 "
        "is used where the error of bf16 exceeds `--max-error`; a processor without bf16 keeps "
        "fp32 and says so. `bf16-weights`: only weights are bf16. `bf16x2`: numbers are sums of "
        "two bf16 terms (hi + lo), and one product takes three; on matrix tiles several times as "
        "fast as fp32 and nearly as exact. `int16`: 16-bit integers with a scale for each row, "
        "column, image and filter; as fast as bf16 without matrix tiles, and about eight times "
        "as exact. `int8`: 8-bit integers with a scale for each row and column of a matmul, for "
        "each filter, and for the input of each convolution; attention uses bf16; int16, bf16 or "
        "fp32 is used where the error exceeds `--max-error`. `fp8`: as `fp16`, but matmuls of "
        "many rows with constant matrices multiply 8-bit floats (e4m3), with a scale for each "
        "matrix from the inputs and one for each column, on GPUs from sm_89 on; fp16 or fp32 is "
        "used where the error exceeds `--max-error`. `int4-weights`: 4-bit matrices with "
        "a scale and a zero point for each block of 32 or 128 rows; bf16 or fp32 weights are "
        "used where the error exceeds `--max-error`",
        also=dict.fromkeys(("tune", "inspect", "explain"), Use(_PRECISION_OF_RESULT)),
    )  # fmt: skip
    max_error: float | None = option(
        None, parse=float, metavar="EPS", group=_COMMON, must=_NOT_NEGATIVE, locked=True,
        help="accepted error as a share of max|y| (default: 1e-4; 1e-2 for lower precision)",
        more="accepted error, as a share of `max|y|` (default: 1e-4, or 1e-2 where precision is "
        "lowered)",
        also={"verify": Use("accepted error as a share of max|y|")},
    )  # fmt: skip
    data: Path | None = option(
        None, parse=Path, metavar="FILE.npz", group=_COMMON,
        help="real inputs to verify and time with, or a folder with NAME.npz for NAME.onnx "
        "(default: synthetic inputs)",
        more="real inputs; all of them are used to verify, and up to three to time, unless "
        "`--shape` says what to time. A folder holds `NAME.npz` for each model `NAME.onnx`. "
        "`--low-rank`, `--prune` and integer precisions are calibrated with these inputs too",
        also={"bench": Use("real inputs", group=TIMING), "verify": Use("real inputs")},
    )  # fmt: skip
    shapes: tuple[dict[str, int], ...] = option(
        (), name="shape", parse=value_parsers.parse_shape, metavar="NAME=N[,NAME=N]", many=True,
        group=_COMMON,
        help="sizes of symbolic dimensions to plan for and to time; may be repeated",
        more="sizes of symbolic dimensions to plan for and to time with; may be repeated. "
        "Without it, a net that takes images of any size is planned for 224×224; in float32, "
        "every run then decides whether 3×3 convolutions use Winograd's algorithm",
        also={
            "bench": Use(_SIZES, group=TIMING), "verify": Use(_SIZES), "tune": Use(_SIZES),
            "inspect": Use("sizes of symbolic dimensions to predict for"),
            "explain": Use("sizes of symbolic dimensions to predict for"),
        },
    )  # fmt: skip
    threads: tuple[int, ...] = option(
        (), parse=value_parsers.parse_threads, metavar="N[,M]", join=",", group=_COMMON,
        help="thread counts to time (default: 1 and all cores)",
        more="thread counts to time with (default: 1 and all cores)",
        also={
            "bench": Use("thread counts (default: 1 and all cores; with --profile: 1)",
                         group=TIMING),
            "verify": Use("threads to run with (default: all cores)", metavar="N"),
            "tune": Use("thread counts to tune for (default: 1 and all cores)"),
        },
    )  # fmt: skip
    budget: float = option(
        180.0, parse=value_parsers.parse_seconds, metavar="SECONDS", group=_COMMON, locked=True,
        must=(lambda value: 0 < value < math.inf, "be a number of seconds above 0"),
        help="time limit, such as 90, 90s or 5m; rewrites not measured by then are dropped "
        "(default: 180)",
        more="time limit of a run, `90`, `90s` or `5m` (default: 180; clear cases end sooner). "
        "Rewrites that are not planned, verified and measured by then are dropped, and the report "
        "says so. The limit does not include compiling, which is done once for a machine, and "
        "choosing smaller matrices",
        also={
            "bench": Use("time limit of --retune (default: 60)", 60.0, "retune"),
            "tune": Use("time limit, such as 60, 60s or 5m (default: 60)", 60.0),
            "tune worker": Use("end after this time (default: 30 days)", 30 * _DAY),
        },
    )  # fmt: skip

    effort: str = option(
        "default", choices=("quick", "default", "thorough"), group=_MEASURING,
        help="quick: time all rewrites together; thorough: search longer for better blocking",
        more="`quick` times all rewrites together and keeps all or none, with blocking that an "
        "earlier search found; `default` also searches for better blocking of matmuls and "
        "convolutions, for 6 % of the budget, if that promises 1 % or more of the run time; "
        "`thorough` searches for 15 % of it, and for other row counts too",
    )  # fmt: skip
    concurrent_runs: int = option(
        1, parse=int, metavar="N", group=_MEASURING,
        must=(lambda value: value >= 1, "be 1 or more"),
        help="choose tiles for runs per second of N runs that share a GPU, not for a run's time",
        more="choose tiles of GPU kernels for runs per second where N runs share a GPU, instead "
        "of for the time of a single run, which becomes longer",
    )  # fmt: skip
    verify: bool = option(
        True, name="no-verify", flag=True, group=_MEASURING,
        help="do not compare outputs with the original's",
    )  # fmt: skip
    rtol: float | None = option(
        None, parse=float, metavar="X", group=_MEASURING, must=_NOT_NEGATIVE,
        help="accepted relative error of each element",
        also={"verify": Use("accepted relative error of each element")},
    )  # fmt: skip
    atol: float | None = option(
        None, parse=float, metavar="X", group=_MEASURING, must=_NOT_NEGATIVE,
        help="accepted absolute error of each element",
        also={"verify": Use("accepted absolute error of each element")},
    )  # fmt: skip
    seed: int = option(
        0, parse=int, metavar="N", group=_MEASURING, must=_NOT_NEGATIVE,
        help=_MADE_UP,
        also={
            "bench": Use(_MADE_UP, group=TIMING), "verify": Use(_MADE_UP),
            "tune": Use("seed of the sampler and of synthetic inputs (default: 0)"),
            "tune worker": Use("seed of the sampler (default: 0)"),
        },
    )  # fmt: skip
    storage: str = option(
        "", metavar="URL", group=_MEASURING, place=True,
        help="share tuning trials with other machines through postgresql://, mysql://, sqlite:/// "
        "or grpc://",
        more="share tuning trials with other machines through an optuna storage: "
        "`postgresql://`, `mysql://`, `sqlite:///` or `grpc://`",
        also={
            "tune": Use("share trials with other machines through this optuna storage"),
            "tune worker": Use("postgresql://, mysql://, sqlite:/// or grpc://", required=True),
        },
    )  # fmt: skip
    patterns: tuple[Mapping[str, Any], ...] = option(
        (), name=CONFIG, parse=validate_hints, metavar="FILE.yaml", group=_MEASURING,
        in_file=False,
        help="read long options, and schedules per pattern, from a file",
        more="read long options, by their whole names, and schedules per pattern from a file",
        also={"tune": Use()},
    )  # fmt: skip

    keep_on_interrupt: bool = option(
        False, flag=True, group=_MEASURING, place=True,
        help="exit with 0 if Ctrl-C leaves a first verified result",
        more="exit with 0, not 130, if Ctrl-C comes when a first result was verified and measured "
        "faster; either way that result is written",
    )  # fmt: skip

    keep: str = option(
        "faster", choices=("faster", "all"), group=_REWRITING, locked=True,
        help="keep what was measured faster (default), or all that is correct, untimed",
        more="`faster` keeps rewrites that were measured faster, `all` keeps all correct ones, "
        "untimed",
    )  # fmt: skip
    only: tuple[str, ...] = option(
        (), metavar="RULE", many=True, group=_REWRITING, locked=True,
        help="use only this rule; may be repeated",
        also={"inspect": Use(), "explain": Use()},
    )  # fmt: skip
    skip: tuple[str, ...] = option(
        (), metavar="RULE", many=True, group=_REWRITING, locked=True,
        help="do not use this rule; may be repeated",
        also={"inspect": Use(), "explain": Use()},
    )  # fmt: skip
    freeze_initializers: bool = option(
        False, flag=True, group=_REWRITING, locked=True,
        help="turn initializers that are also inputs into constants",
        more="initializers that are also inputs, and could be fed, become constants; those inputs "
        "are removed. Otherwise kernels hold such weights where that pays: every run compares "
        "what is fed with the defaults, and runs the original's nodes where they differ",
        also={"inspect": Use(), "explain": Use()},
    )  # fmt: skip
    unused_outputs: tuple[str, ...] = option(
        (), name="unused-output", metavar="NAME", many=True, group=_REWRITING, locked=True,
        help="drop this output and all that only it needs; may be repeated",
        more="drop this output, and the nodes and inputs that only it needs; may be repeated. The "
        "original without it is written beside the result, which is compared with that",
    )  # fmt: skip
    feeds: tuple[str, ...] = option(
        (), name="feed", metavar="NAME", many=True, group=_REWRITING, locked=True,
        help="make this inner value an input; may be repeated",
        more="make this inner value an input; may be repeated. Nodes and inputs that nothing "
        "reads any more are dropped",
    )  # fmt: skip
    custom_ops: bool = option(
        True, name="no-custom-ops", flag=True, group=_REWRITING, locked=True,
        help="write plain ONNX: no custom ops, no library",
    )  # fmt: skip
    windows: tuple[AttentionWindow, ...] = option(
        (), name="window", parse=value_parsers.parse_window, metavar="[A-B:]N[+G]", many=True,
        group=_REWRITING,
        help="limit attention to N keys around each query and the first G keys, in layers A to B; "
        "changes results",
        more="limit attention to N keys per query (the last N in causal models, else half of them "
        "on each side) and the first G keys, in layers A to B or in all; if several are given "
        "for a layer, the last one counts; changes what the model computes",
    )  # fmt: skip

    low_rank: float | None = option(
        None, parse=float, metavar="EPS", group=_COMPRESSING,
        help="factor matrices where a layer's relative error stays below EPS (1: --max-error "
        "alone decides)",
        more="replace a matrix by two factors, of the rank at which the layer's own relative "
        "error is EPS; with 1, `--max-error` alone decides",
    )  # fmt: skip
    prune: PruneSpec | None = option(
        None, parse=value_parsers.parse_prune, metavar="SPEC", group=_COMPRESSING,
        help="set weights of matrices to zero: 0.6, 2:4, block:16x4:0.7 (columns x rows of a "
        "block), or drop channels: channels:0.5",
        more="set weights of matrices to zero. `0.6`: 60 % of each column. `2:4`: two of every "
        "four weights of a column. `block:16x4:0.7`: 70 % of the blocks of 16 columns × 4 rows "
        "(1, 4, 16, 32 or 64 rows). `channels:0.5` instead drops up to half of the channels "
        "between two matmuls; with `--low-rank`, the other matmuls are factored",
    )  # fmt: skip
    holdout: Path | None = option(
        None, parse=Path, metavar="FILE.npz", group=_COMPRESSING,
        help="inputs whose error is reported (default: every fifth set of --data)",
        more="inputs, or a folder of them, that calibrate nothing and whose error is reported "
        "(default: every fifth set of `--data`)",
    )  # fmt: skip
    metric: str = option(
        "", metavar="FILE.py:FUNC", group=_COMPRESSING,
        help="FUNC(outputs, originals) is the error that --max-error limits",
        more="`FUNC(outputs, originals)`, both dicts of arrays, is the error that `--max-error` "
        "limits, instead of the error relative to `max|y|`",
    )  # fmt: skip

    save_lock: Path | None = option(
        None, parse=Path, metavar="PLAN.json", group=_DECIDING, place=True,
        help="write every decision of this run to a file",
    )  # fmt: skip
    lock: Path | None = option(
        None, parse=Path, metavar="PLAN.json", group=_DECIDING, place=True,
        help="apply the decisions of a --save-lock file: nothing is tuned or timed",
        more="apply the decisions in a file of `--save-lock`: nothing is tuned or timed, outputs "
        "are still verified",
    )  # fmt: skip
    use_cache: bool = option(
        True, name="no-cache", flag=True, group=_DECIDING, place=True, was=("fresh",),
        help="tune and time again, even if an equal earlier run has decided",
    )  # fmt: skip
    cache: Path | None = option(
        None, parse=Path, metavar="DIR", group=_DECIDING, place=True,
        help=f"folder of compiled kernels, tuning results and decisions ({_CACHE})",
        more="where compiled kernels, tuning results and decisions are kept (default: "
        "`TRACEA_CACHE`, else `tracea-graph` in `XDG_CACHE_HOME` or `~/.cache`)",
        also={
            command: Use(_CACHE)
            for command in (
                "tune", "tune worker", "tune report", "cache ls", "cache export", "cache import",
                "cache prune", "kernels build", "kernels show",
            )
        },
    )  # fmt: skip

    require_library: bool = option(
        False, flag=True, group=_WRITING, locked=True,
        help="write no function bodies: loading then needs the library",
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
    custom_ops_libraries: tuple[Path, ...] = option(
        (), name="custom-ops-library", parse=Path, metavar="FILE.so", many=True, group=_WRITING,
        help="library of custom ops that the model needs; may be repeated",
        more="library of custom ops that the model itself needs, to run it; the result needs it "
        "too; may be repeated",
        also={"bench": Use(_OWN_OPS, group=TIMING), "verify": Use(_OWN_OPS)},
    )  # fmt: skip
    until: str | None = option(
        None, choices=STAGES, group=_WRITING, place=True,
        help="stop after this stage and show its result",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for keyword, one in OPTIONS.items():
            object.__setattr__(self, keyword, one.read(getattr(self, keyword)))
            one.check(getattr(self, keyword))
        if self.require_library and not self.custom_ops:
            raise UsageError("--require-library and --no-custom-ops contradict each other")

    @property
    def tolerance(self) -> float:
        """Accepted error as a fraction of ``max|y|``."""
        exact = self.precision in ("fp32", "bf16x2") and not (self.windows or self.compresses)
        usual = TOLERANCE.exact if exact else TOLERANCE.lossy
        return usual if self.max_error is None else self.max_error

    @property
    def limits(self) -> ErrorLimits:
        """Accepted errors of outputs: relative to ``max|y|``, and of each element."""
        # imported here because it loads NumPy
        from tracea_graph.check.output_errors import ElementwiseTolerance, ErrorLimits

        given = self.rtol is not None or self.atol is not None
        by_element = ElementwiseTolerance(self.rtol or 0.0, self.atol or 0.0) if given else None
        return ErrorLimits(self.tolerance, self.max_error is not None, elementwise=by_element)

    @property
    def compresses(self) -> bool:
        """Whether the options allow weights to change."""
        return self.low_rank is not None or self.prune is not None

    @property
    def environment(self) -> Environment:
        """Environment with the cache that these options name."""
        # imported here because it loads the backends
        from tracea_graph.target import read_environment

        return read_environment(self.cache)

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Thread counts to time: those given, else 1 and one for each available core."""
        return self.threads or tuple(dict.fromkeys((1, usable_cores())))


OPTIONS: Mapping[str, Option] = MappingProxyType(options_by_keyword(Options))
"""Options by keyword."""

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
                **dict.fromkeys(("explain", "verify", "doctor", "tune", "cache ls",
                                 "kernels build", "kernels list", "kernels show", "repro"),
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
            "verbose", 0, "print reasons, rules and near misses; -vv shows the log too",
            short="v", counted=True,
            more="print reasons, rules and near misses, and a traceback where something goes "
            "wrong; `-vv` shows the log (logger `tracea_graph`) on stderr too",
            group=_PRINTING,
            also={"bench": Use("with --profile: every node with its origins", group=_PRINTING)},
        ),
    }
)  # fmt: skip
"""Options of the command line that ``Options`` lacks."""
