"""The zoo's table: a line for each size, means over first ones, put between its marks."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from pathlib import Path

import pytest

from models import bench as zoo
from models import score as table
from models.ceiling import ceilings
from models.make import available
from models.sizes import SIZES
from tracea_graph.errors import UsageError
from tracea_graph.hardware.machine_measurements import Bandwidth, Measurements, Peak
from tracea_graph.views.bench import BenchReport, BenchRow


def report_of(*subjects: str) -> BenchReport:
    rows = tuple(
        BenchRow(name, n, "b", 10.0 / (i + 1), 1.0, float(i + 1), 1.0, 9.0, 1e-7 * i, 3 * i, 9)
        for n in table.THREADS
        for i, name in enumerate(subjects)
    )
    return BenchReport("m.onnx", rows, {"b": 2.5})


(KEPT,) = table.scores("k", report_of("ONNX Runtime", "OpenVINO f32"), kept=True)
(WON,) = table.scores("w", report_of("ONNX Runtime", "w.tracea.onnx", "OpenVINO f32"), False, 0.93)


def test_a_kept_original_counts_as_one() -> None:
    assert KEPT.ratios and KEPT.ratios["tracea"] == (1.0, 1.0)
    assert KEPT.ms and KEPT.ms["OpenVINO f32"] == (5.0, 5.0)
    said = KEPT.cells(["OpenVINO f32"])
    assert said == ("k (b)", "2.5", "10 / 10", "kept", "1", "1", "", "5 / 5", "", "0", "0 of 9")


def test_a_result_is_rated_at_every_thread_count() -> None:
    assert WON.ratios and WON.ratios["tracea"] == (2.0, 2.0)
    assert (WON.kernels, WON.nodes, WON.error) == (3, 9, 1e-7)
    said = WON.cells(["OpenVINO f32", "OpenVINO bf16"])
    assert said[3:] == ("5 / 5", "2.00×", "2.00×", "", "3.33 / 3.33", "", "93%", "1e-07", "3 of 9")


def test_the_means_are_geometric_and_leave_failures_out() -> None:
    failed = table.Score("f", failed="it died of SIGKILL")
    text = table.markdown([KEPT, WON, failed], "note")
    assert "| geometric mean |  |  |  | 1.41× | 1.41× |  | 2.45×/2.45× |" in text
    assert "| f | failed: it died of SIGKILL |" in text
    assert len({line.count("|") for line in text.splitlines()[:6]}) == 1


def test_a_ceiling_is_the_time_at_the_peak() -> None:
    """10 ms for 1 GFLOP at 200 GFLOP/s; softmax takes 10 cycles of 2 GHz for 16 numbers."""
    peaks = (Peak("f32", "avx2", 100.0), Peak("f32", "avx512", 200.0))
    figures = Measurements(peaks, Bandwidth(), ghz=2.0)
    assert ceilings(10.0, 1.0, 0.0, figures) == pytest.approx((2.0, 0.0))
    assert ceilings(10.0, 1.0, 1.6e6, figures)[0] == pytest.approx(10 / (5 + 0.5))
    peaks = (*peaks, Peak("bf16", "avx512_bf16", 400.0))
    figures = Measurements(peaks, Bandwidth(), ghz=2.0)
    (won,) = table.scores("w", report_of("ONNX Runtime", "w"), False, figures=figures)
    assert won.ceilings == pytest.approx((10 / 12.5, 10 / 6.25))
    assert won.cells([])[6] == "0.80 / 1.60"


def test_scores_survive_storage() -> None:
    for one in (KEPT, WON, dataclasses.replace(WON, ceilings=(1.2, 0.0))):
        assert table.Score.of(json.loads(json.dumps(dataclasses.asdict(one)))) == one


def test_the_table_goes_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    other, (begin, end) = "\n".join(table.marks("fp32")), table.marks("bf16")
    page.write_text(f"{other}\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    for _ in range(2):
        table.replace_table(page, "bf16", "new\n")
    assert page.read_text("utf-8") == f"{other}\n{begin}\nnew\n{end}\nafter\n"
    with pytest.raises(UsageError, match="int16: begin"):
        table.replace_table(page, "int16", "new\n")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_results_page_has_markers(precision: str) -> None:
    page = Path(zoo._parser().get_default("write")).read_text("utf-8")
    begin, end = table.marks(precision)
    assert page.index(begin) < page.index(end)


def test_a_file_without_markers_is_refused_before_anything_runs(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("nothing", encoding="utf-8")
    assert zoo.main(["--only", "tiny-bert", "--write", str(page)]) == 2
    assert zoo.main(["--only", "no-such-model", "--write", "-"]) == 2


def stand_in(folder: Path, text: str) -> str:
    """A program that takes the place of the interpreter a model runs in."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_models_that_fail_are_lines_and_finished_ones_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tiny-bert dies, minilm hangs, gpt2 answers; only the failures run a second time."""
    answer = json.dumps({"scores": [dataclasses.asdict(WON)], "warnings": ["hm"], "made": "here"})
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    ran = tmp_path / "ran"

    class Child(subprocess.Popen[bytes]):
        """Time is up for minilm as soon as it has begun, and never for the others."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None or "minilm" not in self.args:  # type: ignore[operator]
                return super().wait()
            while not ran.exists() or "minilm" not in ran.read_text("utf-8"):
                time.sleep(0.02)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(zoo.subprocess, "Popen", Child)
    monkeypatch.setattr(zoo.sys, "executable", stand_in(tmp_path, f"""
        echo $3 >> {ran}
        case $3 in
            tiny-bert) kill -9 $$ ;;
            minilm) sleep 1000 ;;
            *) cp {tmp_path}/answer $5 ;;
        esac"""))  # fmt: skip
    words = ["--only", "tiny-bert,gpt2,minilm", "--folder", str(tmp_path / "zoo"),
             "--limit", "2", "--write", "-"]  # fmt: skip
    for expected in (["tiny-bert", "gpt2", "minilm"], ["tiny-bert", "minilm"]):
        ran.unlink(missing_ok=True)
        assert zoo.main(words) == 1
        said = capsys.readouterr()
        assert "| tiny-bert | failed: died of SIGKILL |" in said.out
        assert "| minilm | failed: took over 2 s |" in said.out
        assert "| w (b) | 2.5 | 10 / 10 | 5 / 5 | 2.00× | 2.00× |" in said.out
        assert "here; fp32" in said.out and "hm" in said.err
        assert ran.read_text("utf-8").split() == expected
    assert {p.name for p in (tmp_path / "zoo").iterdir()} == {
        "tiny-bert.fp32.row.json", "gpt2.fp32.row.json", "minilm.fp32.row.json"
    }  # fmt: skip
    assert zoo.main([*words[:1], "gpt2", *words[2:], "--pairs", "7"]) == 0
    assert ran.read_text("utf-8").split()[-1] == "gpt2"


def test_further_sizes_are_lines_beside_the_first_which_alone_is_in_the_means() -> None:
    report = report_of("ONNX Runtime", "w.tracea.onnx")
    faster = [dataclasses.replace(r, binding="s", ratio=2 * r.ratio) for r in report.rows]
    both = dataclasses.replace(report, rows=(*report.rows, *faster), gflop={"b": 2.5, "s": 0.5})
    lines = table.scores("w", both, kept=False, programs=0.97)
    assert [(s.binding, s.gflop, s.further) for s in lines] == [
        ("b", 2.5, False),
        ("s", 0.5, True),
    ]
    first, second, mean = table.markdown(lines, "note").splitlines()[2:5]
    assert "2.00× | 2.00×" in first and "97%" in first
    assert "4.00× | 4.00×" in second and "%" not in second
    assert mean.startswith("| geometric mean |  |  |  | 2.00× | 2.00× |")


def test_sizes_are_those_of_models_in_the_zoo() -> None:
    assert set(SIZES) <= set(available())
    assert all(first == {} for first, *_ in SIZES.values())
