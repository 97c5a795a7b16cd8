"""The report as a record, as text and as a page."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from tests.commands.samples import profile, row
from tracea_graph import Report
from tracea_graph.kernels.kernel_metadata import KernelMetadata, LaunchSpec, Resources
from tracea_graph.reason_codes import VERDICTS, Code
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.views import (
    GroupRow,
    ReportProfiles,
    RuleRow,
    TimingRow,
    plain_text,
    render_report,
    report_page,
    rule_rows,
)
from tracea_graph.views.kernel_table import KernelRow
from tracea_graph.views.report_record import gain_in_words, with_explicit_folder

EVIL = "</p><script>alert('[bold]')</script>\x1b[31m\n"
TIMING = TimingRow(1, "batch=1", 2.0, 1.0, 1.9, 0.9, 2.0, 1.9, 2.1, 15)
KEPT = GroupRow(
    "FusedGemm_0a1b2c 64x64", "gemm", 2, True, "kept: 1.200×", (1.2, 1.34), ("a", "b"), Code.FASTER
)
DROPPED = GroupRow(
    "FusedNorm_0a1b2c", "norm", 1, False,
    "dropped: no clear gain, 1.001× (0.990–1.010) at 1 thread, batch=1", (1.001,), ("c",),
    Code.NOT_FASTER,
)  # fmt: skip
IMPROVED = Report(
    input="m.onnx", output="m.tracea.onnx", outcome="improved", reason="20 nodes became 4",
    library="m.tracea.so", domain="tracea.0123456789", kernels=2, nodes_before=20, nodes_after=4,
    status="passed", error=2e-7, floor=1e-7, levels=("scalar",), groups=(KEPT, DROPPED),
    rules=(RuleRow("gemm", 2, "applied"), RuleRow("norm", 1, "missed", "no gain predicted")),
    timings=(TIMING,), warnings=("the machine is busy",), versions={"tracea": "1"},
)  # fmt: skip
KEPT_ORIGINAL = Report(
    "m.onnx", "m.tracea.onnx", "kept original", "nothing was faster", tried=(TIMING,)
)


def shown(report: Report, verbosity: int = 0, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(render_report(report, verbosity))
    return capture.get()


class Page(HTMLParser):
    """Collects tags and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


# ---- the record --------------------------------------------------------------------------


def test_json_is_standard_json() -> None:
    """No infinity (too few pairs for bounds), no NaN, no NumPy number, no path."""
    odd = replace(
        IMPROVED,
        timings=(replace(TIMING, low=0.0, high=float("inf")),),
        error=float("nan"),
        machine={"cores": np.int64(2), "share": np.float32(0.5), "isas": ("avx2",)},
    )
    told = json.loads(odd.to_json(), parse_constant=pytest.fail)
    assert told["timings"][0]["high"] is None and told["error"] is None
    assert told["machine"] == {"cores": 2, "share": 0.5, "isas": ["avx2"]}


def test_the_files_of_a_result_are_listed() -> None:
    assert IMPROVED.files == ("m.tracea.onnx", "m.tracea.so", "m.tracea.json")
    assert KEPT_ORIGINAL.files == ("m.tracea.onnx", "m.tracea.json")


@pytest.mark.parametrize(
    ("row", "verdict", "gain"),
    [
        (KEPT, "kept", "1.20–1.34×"),
        (DROPPED, "dropped: no clear gain", "1.00×"),
        (replace(KEPT, code=Code.UNMEASURED, gains=()), "kept, not timed", ""),
        (
            replace(DROPPED, code=Code.ORIGINAL_KEPT),
            "dropped with all other rewrites",
            "1.00×",
        ),
        (
            replace(DROPPED, code=Code.OUT_OF_BUDGET),
            "dropped: the budget ran out",
            "1.00×",
        ),
    ],
)
def test_verdicts_are_short(row: GroupRow, verdict: str, gain: str) -> None:
    assert (row.verdict, row.gain) == (verdict, gain)


def test_every_verdict_of_a_group_has_words() -> None:
    words = [VERDICTS[code] for code in VERDICTS]
    assert len(set(words)) == len(words)
    assert all(word.startswith(("kept", "dropped")) for word in words)


def test_rules_come_from_the_trace() -> None:
    trace = DecisionTrace()
    for verdict, reason in (("applied", ""), ("applied", ""), ("missed", "it is wide")):
        trace.add("fuse", "gemm", "here", verdict, reason)
    assert rule_rows(trace) == (
        RuleRow("gemm", 2, "applied"),
        RuleRow("gemm", 1, "missed", "it is wide", Code.PATTERN_MISMATCH),
    )


@pytest.mark.parametrize(
    ("path", "given"), [("m.so", "./m.so"), ("d/m.so", "d/m.so"), ("/d/m.so", "/d/m.so")]
)
def test_a_library_is_named_with_its_folder(path: str, given: str) -> None:
    assert with_explicit_folder(path) == given


# ---- text --------------------------------------------------------------------------------


def test_text_tells_the_outcome_last_and_in_order() -> None:
    lines = [line.rstrip() for line in shown(IMPROVED).splitlines()]
    assert lines[0] == "m.onnx: 20 nodes"
    assert lines[-6:] == [
        "improved: 20 nodes became 4",
        "verified: largest error 2.0e-07 of max|y| (ONNX Runtime's own optimizations: 1.0e-07)",
        "wrote m.tracea.onnx",
        "wrote m.tracea.so",
        "wrote m.tracea.json",
        'load it with options.register_custom_ops_library("./m.tracea.so")',
    ]
    assert "warning: the machine is busy" in lines
    assert "no gain predicted" not in "".join(lines)
    assert "no gain predicted" in shown(IMPROVED, 1) and "0.990–1.010" in shown(IMPROVED, 1)


def test_text_of_an_untimed_result_claims_no_improvement() -> None:
    text = shown(replace(IMPROVED, timings=(), reason="20 nodes became 4, not timed"))
    assert "rewritten: 20 nodes became 4, not timed" in text and "improved" not in text


def test_text_of_a_single_node() -> None:
    assert shown(replace(IMPROVED, nodes_before=1)).startswith("m.onnx: 1 node\n")


def test_text_of_a_kept_original_claims_no_gain() -> None:
    text = shown(KEPT_ORIGINAL)
    assert "kept original: nothing was faster" in text
    assert "original against all rewrites tried" in text
    assert "verified" not in text and "load it" not in text


def test_an_unverified_result_says_so() -> None:
    report = replace(IMPROVED, status="skipped", status_reason="--no-verify was given", error=None)
    assert "not verified: --no-verify was given" in shown(report)


@pytest.mark.parametrize("width", [60, 80, 300])
def test_layer_names_are_never_cut(width: int) -> None:
    names = [line.split("  ")[0] for line in shown(IMPROVED, 0, width).splitlines()]
    assert "a … b 64x64" in names and "c" in names


def test_names_of_a_model_are_text_and_nothing_more() -> None:
    report = replace(IMPROVED, input=EVIL, warnings=(EVIL,), groups=(replace(KEPT, group=EVIL),))
    text = shown(report)
    assert "\x1b" not in text and "[bold]" in text
    assert plain_text("a\tb\n\x1b[0m é") == "a\ufffdb\ufffd\ufffd[0m é"


# ---- HTML --------------------------------------------------------------------------------


def test_the_page_stands_alone_and_tells_everything() -> None:
    page = report_page(IMPROVED, KEPT_ORIGINAL)
    found = Page(page)
    assert not {"link", "img", "iframe"} & set(found.tags) and found.tags.count("script") == 1
    assert "http" not in page and "url(" not in page
    assert found.tags.count("h1") == 2
    for word in (KEPT.group, "2.00×", "the machine is busy", "no gain predicted", "./m.tracea.so"):
        assert word in found.text


def test_the_page_has_the_facts_of_kernels() -> None:
    report = replace(
        IMPROVED,
        kernel_calls=(
            KernelRow("gemm", "M=1", "rows", "f32_gemm_8x48__avx512", "avx512", 2),
            KernelRow("gemm", "M=9", "rows", "f32_gemm_8x48__avx512", "avx512", 1),
            KernelRow("norm", "N=9", "rows", "f32_norm_4x16__avx512", "avx512", 1),
        ),
    )
    facts = KernelMetadata(
        "f32_gemm_8x48__avx512", "gemm", "f32", "avx512", "8x48", (), "gemm.cpp.in",
        LaunchSpec("rows"), "bias + chain", {"rows": 8}, (), Resources(4096, 31, 264, 7),
    )  # fmt: skip
    kernels = {"f32_gemm_8x48__avx512": facts}
    text = Page(
        report_page(report, profiles={report.output: ReportProfiles(kernels=kernels)})
    ).text
    rows = text[text.index("\nKernels\n") :]
    for word in (
        "f32_gemm_8x48__avx512",
        "3 × gemm",
        "8x48",
        "rows 8",
        "bias + chain",
        "31",
        "264 B",
    ):
        assert word in rows
    assert "f32_norm" not in rows
    assert "\nKernels\n" not in Page(report_page(report)).text


def test_the_page_escapes_what_a_model_says() -> None:
    evil = replace(
        IMPROVED, input=EVIL, output=EVIL, library=EVIL, reason=EVIL, warnings=(EVIL,),
        groups=(replace(KEPT, group=EVIL, reason=EVIL, originals=(EVIL,)),),
        timings=(replace(TIMING, binding=EVIL),), rules=(RuleRow(EVIL, 1, EVIL, EVIL),),
    )  # fmt: skip
    found = Page(report_page(evil))
    assert found.tags.count("script") == 1 and "alert('[bold]')" in found.text
    harmless = Page(report_page(IMPROVED))
    assert set(found.tags) - {"wbr"} == set(harmless.tags)


def test_a_notebook_gets_the_same_without_the_frame() -> None:
    part = IMPROVED._repr_html_()
    assert "<!doctype" not in part and "</html>" not in part and "<script" not in part
    assert "h1" in Page(part).tags


def test_the_page_of_the_barest_report() -> None:
    assert "The original was kept" in report_page(Report("a", "b", "kept original", ""))


def test_the_page_begins_with_milliseconds_speedup_and_bound() -> None:
    text = Page(report_page(IMPROVED)).text
    start = text[text.index("2 ms became") :]
    assert start.startswith("2 ms became 1 ms: 2.00× as fast")
    assert "At least 1.90× with 99 % confidence" in start[:100]
    assert (
        "timed on 2026-01-02" in Page(report_page(replace(IMPROVED, timed_at="2026-01-02"))).text
    )


def test_times_below_a_tenth_of_a_millisecond_are_microseconds() -> None:
    rows = profile(row("FusedGemm", us=120.0), row("FusedNorm", us=1.25))
    text = Page(report_page(IMPROVED, profiles={IMPROVED.output: ReportProfiles(None, rows)})).text
    assert "0.12 ms" in text and "1.25 µs" in text


def test_the_page_of_a_kept_original_begins_with_the_reason() -> None:
    few = replace(KEPT_ORIGINAL, tried=(replace(TIMING, low=0.0, high=float("inf"), pairs=4),))
    text = Page(report_page(few)).text
    assert "The original was kept\nNothing was faster.\nOnly 4 pairs were timed" in text


def test_the_page_names_layers_by_the_original_nodes() -> None:
    names = ("/net/layer.0/MatMul", "/net/layer.1/MatMul")
    kept = replace(KEPT, originals=names)
    calls = tuple(row("FusedGemm", us=40.0, originals=(n,)) for n in names)
    profiled = profile(row("FusedGemm_0a1b2c", us=90.0, calls=calls, originals=names))
    page = report_page(
        replace(IMPROVED, groups=(kept,)),
        profiles={IMPROVED.output: ReportProfiles(profile(row("MatMul", us=200.0)), profiled)},
    )
    text = Page(page).text
    assert "layer.0 … layer.1" in text and "100 %" in text
    assert "What changed" in text and "Where the time goes" in text and "Why not more" in text
    assert all(name in text for name in names)


def test_the_page_claims_no_limit_for_unknown_work() -> None:
    own = row("Conv", us=90.0, flops=None, weights=None, compute_us=0.0, memory_us=0.0)
    for ours, claimed in ((80.0, False), (100.0, True)):
        rows = profile(own, row("FusedGemm", us=ours, compute_us=40.0))
        page = report_page(IMPROVED, profiles={IMPROVED.output: ReportProfiles(None, rows)})
        text = Page(page).text
        assert ("cannot run more than 2.5×" in text) == claimed
        assert not re.search(r"(?<!\d)0.0 %", text)


def test_a_model_without_a_profile_says_why() -> None:
    page = report_page(
        IMPROVED, profiles={IMPROVED.output: ReportProfiles(missing="it <b>broke</b>")}
    )
    assert "There is no profile: it <b>broke</b>" in Page(page).text


def test_names_of_any_length_and_kind_are_text() -> None:
    odd = ("<script>alert(1)</script>", "\"'</style>", "a\nb", "x" * 300)
    page = report_page(replace(IMPROVED, groups=(replace(KEPT, originals=odd),)))
    found = Page(page)
    assert found.tags.count("script") == 1 and found.tags.count("style") == 2
    assert "alert(1)" in found.text and "x" * 300 in found.text


def test_the_headline_gives_the_lower_bound() -> None:
    assert gain_in_words((TIMING,)) == "at least 1.90× as fast, 2.00× in the median"
    slow = replace(TIMING, threads=2, ratio=1.5, low=1.1)
    assert gain_in_words((TIMING, slow)) == "at least 1.10× as fast, 1.50× to 2.00× in the median"
    noisy = gain_in_words((TIMING, replace(TIMING, threads=2, ratio=1.5, low=0.84)))
    assert noisy == "1.50× to 2.00× in the median, 99 % bounds from 0.84× on"
    alike = replace(TIMING, threads=2, ratio=2.004)
    assert gain_in_words((TIMING, alike)) == "at least 1.90× as fast, 2.00× in the median"
    assert gain_in_words(()) == "not timed"
    few = replace(TIMING, low=0.0)
    assert gain_in_words((few,)) == "2.00× in the median, with too few runs for bounds"


def test_layers_go_by_the_original_nodes_and_kernels_are_named_on_request() -> None:
    nodes = tuple(f"/m/layer.{i}/MatMul" for i in range(12))
    report = replace(IMPROVED, groups=(replace(KEPT, originals=nodes), DROPPED))
    assert "layer.0 … layer.11" in shown(report) and "FusedGemm" not in shown(report)
    assert "FusedGemm_0a1b2c 64x64" in shown(report, 1)
