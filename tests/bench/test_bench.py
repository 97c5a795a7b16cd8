"""Races of models and runtimes, and the table they end in."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.samples import result
from check.tiny_models import save
from rich.console import Console

from models import bench as zoo
from models import score as table
from models.ceiling import ceilings
from tracea_graph.check.peers import PEERS, PeerWorker, peers_named
from tracea_graph.check.worker import Rejected
from tracea_graph.cli.bench import add_bench, run_bench
from tracea_graph.errors import TraceaError, UsageError
from tracea_graph.hardware.measure import Bandwidth, Measurements, Peak
from tracea_graph.pipeline.bench import BenchOptions, bench, busy_note, entrant, result_beside
from tracea_graph.views.bench import BenchReport, BenchRow, render_bench

PRODUCT = "g (float[n, 64] x) => (float[n, 64] y) { h = MatMul(x, w) y = Relu(h) }"
QUICK = BenchOptions(threads=(1,), shapes=({"n": 32},), pairs=8, seconds=5.0, peers=())


@pytest.fixture
def product(tmp_path: Path) -> Path:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return save(tmp_path, "product.onnx", PRODUCT, w=weight)


def run(*words: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    add_bench(parser.add_subparsers(dest="command"))
    console = Console(width=160)
    with console.capture() as capture:
        code = run_bench(parser.parse_args(["bench", *words]), console)
    return code, capture.get()


# ---- the worker ------------------------------------------------------------------------


def test_any_number_of_sessions_run_in_turn(product: Path) -> None:
    feeds = {"x": np.ones((4, 64), np.float32)}
    with PeerWorker() as worker:
        for name in "abc":
            worker.open(name, product)
        heat = worker.race_all(["a", "b", "c"], feeds, pairs=5)
    assert [len(ms) for ms in heat.ms] == [5, 5, 5]
    assert min(map(min, heat.ms)) > 0


@pytest.mark.skipif(not PEERS[0].version, reason="OpenVINO is not installed")
@pytest.mark.parametrize("peer", PEERS, ids=lambda p: str(p.name))
def test_openvino_computes_the_same_in_turn_with_onnxruntime(product: Path, peer: object) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}
    with PeerWorker() as worker:
        worker.open("ort", product)
        worker.open_peer("peer", peer, product, feeds, ["y"])  # type: ignore[arg-type]
        wanted, found = worker.run("ort", feeds)["y"], worker.run("peer", feeds)["y"]
        heat = worker.race_all(["ort", "peer"], feeds, pairs=4)
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()
    assert len(heat.ms[1]) == 4


@pytest.mark.skipif(not PEERS[0].version, reason="OpenVINO is not installed")
def test_what_a_peer_refuses_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with PeerWorker() as worker, pytest.raises(Rejected):
        worker.open_peer("p", PEERS[0], broken, {}, [])


@pytest.mark.skipif(not PEERS[0].version, reason="OpenVINO is not installed")
def test_what_a_peer_compiles_and_cannot_run_is_told(
    product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, name = PeerWorker.run, PEERS[0].name

    def run(self: PeerWorker, session: str, feeds: Any) -> Any:
        if session == name:
            raise Rejected("an index is outside")
        return plain(self, session, feeds)

    monkeypatch.setattr(PeerWorker, "run", run)
    report = bench([product], dataclasses.replace(QUICK, peers=(name,)))
    assert f"{name} refuses product.onnx: an index is outside" in report.warnings
    assert {row.entrant for row in report.rows} == {"ONNX Runtime"}


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(UsageError, match="no peer 'tensorrt'"):
        peers_named(["tensorrt"])


# ---- races -----------------------------------------------------------------------------


def test_a_model_races_its_twin_and_makes_no_error(product: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.onnx"
    twin.write_bytes(product.read_bytes())
    report = bench([product, twin], QUICK)
    base, other = report.rows
    assert (base.entrant, other.entrant) == ("ONNX Runtime", "twin.onnx")
    assert (base.ratio, other.error) == (1.0, 0.0)
    assert other.low <= other.ratio <= other.high
    assert report.gflop["n=32"] == pytest.approx(2 * 32 * 64 * 64 / 1e9, rel=0.05)
    assert report.rounds == 8


def test_a_lone_model_meets_the_result_beside_it(product: Path) -> None:
    assert result_beside(product) == ()
    beside = product.with_name("product.tracea.onnx")
    beside.write_bytes(product.read_bytes())
    assert [r.entrant for r in bench([product], QUICK).rows][1] == beside.name


def test_a_missing_library_is_told(tmp_path: Path) -> None:
    path = result(tmp_path)
    assert entrant(path).library is None
    options = BenchOptions(threads=(1,), pairs=2, peers=())
    report = bench([path], options)
    assert "result.onnx has no library beside it" in report.warnings[0]


def test_another_models_library_is_refused(tmp_path: Path) -> None:
    import onnx

    path = result(tmp_path)
    model = onnx.load(path)
    model.metadata_props.add(key="tracea.library.sha256", value="0" * 64)
    onnx.save(model, path)
    path.with_suffix(".so").write_bytes(b"something else")
    with pytest.raises(UsageError, match="not the library"):
        entrant(path)


def test_a_busy_machine_is_told() -> None:
    assert busy_note(0.1) == ()
    assert "150%" in busy_note(1.5)[0]


def test_the_table_states_threads_bounds_and_versions() -> None:
    rows = (
        BenchRow("ONNX Runtime", 1, "n=1", 10.0, 9.0, 1.0, 1.0, 1.0, 0.0),
        BenchRow("[b]r.onnx", 1, "n=1", 5.0, 4.5, 2.0, 1.9, 2.1, 3e-7, 4, 6),
    )
    report = BenchReport(
        "m.onnx", rows, {"n=1": 1.5}, 30, ("busy",), {"tracea": "1", "onnxruntime": "1.31"},
        {"model": "Some CPU", "threads": 2},
    )  # fmt: skip
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render_bench(report))
    said = capture.get()
    for part in ("2.00×", "1.90–2.10", "3.0e-07", "4 of 6", "[b]r.onnx", "warning: busy", "30"):
        assert part in said
    assert "Some CPU, 2 threads, tracea 1, onnxruntime 1.31" in said


# ---- the command -----------------------------------------------------------------------


def test_the_command_prints_json(product: Path) -> None:
    code, said = run(str(product), "--threads", "1", "--pairs", "8", "--peers", "ort", "--json")
    assert code == 0
    assert [r["entrant"] for r in json.loads(said)["rows"]] == ["ONNX Runtime"]


@pytest.mark.parametrize(
    "words",
    [
        ["a.onnx", "--svg", "a.svg"],
        ["a.onnx", "b.onnx", "--profile"],
        ["a.onnx", "--seconds", "0"],
        ["a.onnx", "--peers", "nobody"],
        ["missing.onnx"],
    ],
)
def test_impossible_arguments_are_one_sentence(words: list[str]) -> None:
    with pytest.raises(TraceaError) as caught:
        run(*words)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["--threads", "0"], ["--shape", "=3"], ["--pairs", "x"]])
def test_malformed_values_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("a.onnx", *words)
    assert caught.value.code == 2


# ---- the zoo's table -------------------------------------------------------------------


def report_of(*entrants: str) -> BenchReport:
    rows = tuple(
        BenchRow(name, n, "b", 10.0 / (i + 1), 1.0, float(i + 1), 1.0, 9.0, 1e-7 * i, 3 * i, 9)
        for n in table.THREADS
        for i, name in enumerate(entrants)
    )
    return BenchReport("m.onnx", rows, {"b": 2.5})


KEPT = table.score("k", report_of("ONNX Runtime", "OpenVINO f32"), kept=True)
WON = table.score("w", report_of("ONNX Runtime", "w.tracea.onnx", "OpenVINO f32"), False, 0.93)


def test_a_kept_original_counts_as_one() -> None:
    assert KEPT.ratios and KEPT.ratios["tracea"] == (1.0, 1.0)
    assert KEPT.ms and KEPT.ms["OpenVINO f32"] == (5.0, 5.0)
    said = KEPT.cells(["OpenVINO f32"])
    assert said == ("k (b)", "2.5", "10 / 10", "kept", "1", "1", "", "5 / 5", "0%", "0", "0 of 9")


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
    won = table.score("w", report_of("ONNX Runtime", "w"), False, figures=figures)
    assert won.ceilings == pytest.approx((10 / 12.5, 10 / 6.25))
    assert won.cells([])[6] == "0.80 / 1.60"


def test_scores_survive_storage() -> None:
    for one in (KEPT, WON, dataclasses.replace(WON, ceilings=(1.2, 0.0))):
        assert table.Score.of(json.loads(json.dumps(dataclasses.asdict(one)))) == one


def test_the_table_goes_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        table.replace_table(page, "new\n")
    assert page.read_text("utf-8") == f"before\n{table.BEGIN}\nnew\n{table.END}\nafter\n"


def test_the_page_itself_has_markers() -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert page.index(table.BEGIN) < page.index(table.END)


def test_a_file_without_markers_is_refused_before_anything_runs(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
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
    answer = json.dumps({"score": dataclasses.asdict(WON), "warnings": ["hm"], "made": "here"})
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    ran = tmp_path / "ran"
    monkeypatch.setattr(zoo.sys, "executable", stand_in(tmp_path, f"""
        echo $3 >> {ran}
        case $3 in
            tiny-bert) kill -9 $$ ;;
            minilm) sleep 60 ;;
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
        "tiny-bert.row.json", "gpt2.row.json", "minilm.row.json"
    }  # fmt: skip
    assert zoo.main([*words[:1], "gpt2", *words[2:], "--pairs", "7"]) == 0
    assert ran.read_text("utf-8").split()[-1] == "gpt2"
