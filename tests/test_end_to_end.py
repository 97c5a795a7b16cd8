"""A transformer and a large product through the whole pipeline: what comes out, how it runs."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tests.highest import highest_level
from tests.tiny import answers, child, error_between, padded_text, product, transformer
from tracea_graph import Options, Report, api
from tracea_graph.check.worker_process import RejectedByRuntime, Worker
from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu import backend
from tracea_graph.kernels.cpu.machine_model import measured_machine
from tracea_graph.reason_codes import Code

pytestmark = pytest.mark.compiler
CLOSE = 1e-5

Pair = tuple[Path, Path]
"""An original and its result."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def original(folder: Path) -> Path:
    return transformer(folder)


@pytest.fixture(scope="module")
def report(original: Path) -> Report:
    return api.optimize(original, Options(keep="all"))


@pytest.fixture(scope="module")
def result(report: Report) -> Path:
    return Path(report.output)


@pytest.fixture(scope="module")
def large(folder: Path) -> Pair:
    """Over 16 MB of weights: more than fits inside the model file."""
    original = product(folder / "large.onnx", 1472, 1472, copies=2)
    with highest_level():
        return original, Path(api.optimize(original, Options(keep="all", verify=False)).output)


# ---- what it computes --------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "all"])
@pytest.mark.parametrize("with_library", [True, False], ids=["library", "bodies"])
def test_it_answers_as_the_original(
    original: Path, result: Path, level: str, with_library: bool
) -> None:
    library = result.with_suffix(".so") if with_library else None
    for feeds in (padded_text(), padded_text(1, 1), padded_text(2, 128)):
        expected = answers(original, feeds, level="off")
        assert error_between(answers(result, feeds, library, level, threads=2), expected) < CLOSE


def test_every_fused_node_runs_as_a_kernel(report: Report, result: Path) -> None:
    with Worker() as worker:
        worker.open("result", result, result.with_suffix(".so"))
        nodes = worker.profile("result", padded_text(), runs=2)
    assert sum(node.domain == report.domain for node in nodes) == report.kernels >= 3


def test_the_report_says_it_was_verified(report: Report) -> None:
    assert (report.outcome, report.status) == ("improved", "passed")
    assert report.error is not None and 0 < report.error < CLOSE
    assert report.nodes_after < report.nodes_before
    assert all(row.kept for row in report.groups)


# ---- what is in the file -----------------------------------------------------------------


def test_the_checker_accepts_it(result: Path) -> None:
    onnx.checker.check_model(result, full_check=True)


def test_the_interface_is_kept_byte_for_byte(original: Path, result: Path) -> None:
    before, after = onnx.load(original).graph, onnx.load(result).graph
    for field in ("input", "output"):
        ends = [[v.SerializeToString() for v in getattr(g, field)] for g in (before, after)]
        assert ends[0] == ends[1]


def test_nodes_name_the_originals_they_stand_for(original: Path, result: Path) -> None:
    names = {node.name for node in onnx.load(original).graph.node}
    told = [
        {p.key: p.value for p in node.metadata_props}
        for node in onnx.load(result).graph.node
        if node.domain.startswith("tracea.")
    ]
    covered = [name for entry in told for name in entry["tracea.nodes"].split("\n")]
    assert set(covered) <= names
    assert len(covered) == len(set(covered)) > 60
    assert all(re.fullmatch(r"[a-z][a-z0-9-]+", entry["tracea.rule"]) for entry in told)


def test_model_and_library_name_each_other(report: Report, result: Path) -> None:
    model, library = onnx.load(result), result.with_suffix(".so").read_bytes()
    facts = {p.key: p.value for p in model.metadata_props}
    assert facts["tracea.library.domain"] == report.domain
    assert facts["tracea.library.backend"] == report.backend == "cpu"
    assert facts["tracea.library.sha256"] == hashlib.sha256(library).hexdigest()
    assert {n.domain for n in model.graph.node} == {"", report.domain}
    assert {f.domain for f in model.functions} == {report.domain}
    assert report.domain is not None and report.domain.encode() in library


def test_the_manifest_is_the_report(report: Report, result: Path) -> None:
    told = json.loads(result.with_suffix(".json").read_text())
    assert told["domain"] == report.domain
    assert told["manifest"]["types"]
    assert {row["group"] for row in told["groups"]} == {row.group for row in report.groups}


def test_large_weights_are_page_aligned_and_named_by_their_content(large: Pair) -> None:
    _, result = large
    model = onnx.load(result, load_external_data=False)
    entries = [
        {e.key: e.value for e in t.external_data}
        for t in model.graph.initializer
        if t.data_location == onnx.TensorProto.EXTERNAL
    ]
    assert len(entries) == 4
    assert all(int(entry["offset"]) % 4096 == 0 for entry in entries)
    (name,) = {entry["location"] for entry in entries}
    digest = hashlib.sha256((result.parent / name).read_bytes()).hexdigest()
    assert name == f"{result.stem}.{digest[:10]}.data"


@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
def test_saved_again_it_still_runs_right(large: Pair, tmp_path: Path, external: bool) -> None:
    original, result = large
    again = tmp_path / "again.onnx"
    onnx.save(onnx.load(result), again, save_as_external_data=external, location="again.data")
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 1472), np.float32)}
    expected = answers(original, feeds)
    for library in (result.with_suffix(".so"), None):
        assert error_between(answers(again, feeds, library), expected) < CLOSE


# ---- how it is loaded --------------------------------------------------------------------


RUN = """
import sys, numpy, tracea_graph
text = dict(numpy.load(sys.argv[1]))
x = {"x": numpy.ones((3, 1472), numpy.float32)}
feeds = [text if "tiny" in path else x for path in sys.argv[3:]]
sessions = [tracea_graph.session(path) for path in sys.argv[3:]]
found = [s.run(None, f)[0] for s, f in zip(sessions, feeds)]
numpy.savez(sys.argv[2], *found)
"""


def test_two_results_live_in_one_process(
    original: Path, result: Path, large: Pair, tmp_path: Path
) -> None:
    np.savez(tmp_path / "feeds.npz", **padded_text())  # type: ignore[arg-type]
    child(RUN, tmp_path / "feeds.npz", tmp_path / "found.npz", result, large[1])
    found = np.load(tmp_path / "found.npz")
    expected = answers(original, padded_text())["last_hidden_state"]
    assert error_between({"y": found["arr_0"]}, {"y": expected}) < CLOSE
    x = np.ones((3, 1472), np.float32)
    assert error_between({"y": found["arr_1"]}, answers(large[0], {"x": x})) < CLOSE


THREADS = """
import sys, numpy, tracea_graph
from concurrent.futures import ThreadPoolExecutor
from tests.tiny import padded_text
session = tracea_graph.session(sys.argv[1])
jobs = [padded_text(1 + i % 3, 5 + 7 * (i % 8)) for i in range(64)]
alone = [session.run(None, feeds)[0] for feeds in jobs]
with ThreadPoolExecutor(8) as pool:
    together = list(pool.map(lambda feeds: session.run(None, feeds)[0], jobs))
assert all(numpy.array_equal(a, b) for a, b in zip(alone, together))
print("equal")
"""


def test_one_session_serves_eight_threads(result: Path) -> None:
    setup = "import sys; sys.path.append('.')"
    assert child(setup + THREADS, result) == "equal\n"


OPEN = """
import sys, onnxruntime, tracea_graph.api
def own():
    rows = (line.split() for line in open("/proc/self/smaps_rollup"))
    return next(int(row[1]) for row in rows if row[0] == "Anonymous:")
before = own()
session = tracea_graph.session(sys.argv[1])
print(own() - before)
"""


def test_a_session_keeps_no_more_than_transformed_filters(tmp_path: Path) -> None:
    """What ONNX Runtime frees while it computes them lies between them: three times as much."""
    layers, channels, net = 10, 160, Net()
    value = net.input("x", "n", channels, 28, 28)
    for i in range(layers):
        filters = normal(channels, channels, 3, 3, seed=i) / (3 * channels**0.5)
        value = net("Relu", net("Conv", value, filters, pads=[1] * 4))
    net.save(tmp_path / "stack.onnx", value)
    options = Options(keep="all", threads=(1,), verify=False)
    with highest_level():
        report = api.optimize(tmp_path / "stack.onnx", options)
    transformed = layers * channels**2 * 36 * 4
    assert 1024 * int(child(OPEN, Path(report.output))) < 1.5 * transformed


FIND = """
import json, sys, onnxruntime, tracea_graph
from tests.tiny import padded_text
options = onnxruntime.SessionOptions()
options.enable_profiling, options.profile_file_prefix = True, sys.argv[2]
session = tracea_graph.session(sys.argv[1], sess_options=options)
session.run(None, padded_text())
events = json.load(open(session.end_profiling()))
print(any(e.get("args", {}).get("op_name", "").startswith("FusedRegion_") for e in events))
"""


@pytest.mark.parametrize("present", [True, False])
def test_session_registers_the_library_beside_the_model(
    result: Path, tmp_path: Path, present: bool
) -> None:
    shutil.copy(result, tmp_path)
    if present:
        shutil.copy(result.with_suffix(".so"), tmp_path)
    setup = "import sys; sys.path.append('.')"
    told = child(setup + FIND, tmp_path / result.name, tmp_path / "profile")
    assert told == f"{present}\n"


@pytest.mark.parametrize("damage", ["truncated", "another", "empty"])
def test_session_refuses_a_library_that_is_not_the_models(
    result: Path, tmp_path: Path, damage: str
) -> None:
    library, data = tmp_path / f"{result.stem}.so", result.with_suffix(".so").read_bytes()
    shutil.copy(result, tmp_path)
    made = {"truncated": data[: len(data) // 2], "another": data + b"\0", "empty": b""}
    library.write_bytes(made[damage])
    with pytest.raises(UsageError, match=r"\.so is not the library .*onnx was written with"):
        api.session(tmp_path / result.name)


# ---- other ways to write it --------------------------------------------------------------


def test_without_bodies_it_needs_its_library(original: Path, tmp_path: Path) -> None:
    options = Options(tmp_path, keep="all", require_library=True, verify=False)
    result = Path(api.optimize(original, options).output)
    assert not onnx.load(result).functions
    library = result.with_suffix(".so")
    found = answers(result, padded_text(), library)
    assert error_between(found, answers(original, padded_text())) < CLOSE
    with pytest.raises(RejectedByRuntime):
        answers(result, padded_text())
    library.unlink()
    with pytest.raises(UsageError, match="cannot run without its library: put tiny-bert"):
        api.session(result)


def test_plain_onnx_needs_no_library(original: Path, tmp_path: Path) -> None:
    options = Options(tmp_path, keep="all", custom_ops=False)
    report = api.optimize(original, options)
    result = Path(report.output)
    assert (report.outcome, report.library, report.kernels) == ("improved", None, 0)
    assert not result.with_suffix(".so").exists()
    model = onnx.load(result)
    assert not any(node.domain for node in model.graph.node) and not model.functions
    assert len(model.graph.node) == report.nodes_after < report.nodes_before
    assert error_between(answers(result, padded_text()), answers(original, padded_text())) < CLOSE


def test_without_prepacking_weights_are_the_originals(original: Path, tmp_path: Path) -> None:
    options = Options(tmp_path, keep="all", prepack=False)
    with highest_level():
        report = api.optimize(original, options)
    before, after = (
        {t.name: t.raw_data for t in onnx.load(path).graph.initializer}
        for path in (original, report.output)
    )
    large = {name: data for name, data in after.items() if len(data) > 4096}
    assert large and all(before.get(name) == data for name, data in large.items())
    found = answers(Path(report.output), padded_text(), Path(str(report.library)))
    assert error_between(found, answers(original, padded_text())) < CLOSE


def test_a_single_file_holds_all_weights(large: Pair, tmp_path: Path) -> None:
    options = Options(tmp_path, keep="all", single_file=True, verify=False)
    with highest_level():
        report = api.optimize(large[0], options)
    names = {path.name for path in tmp_path.iterdir()}
    assert report.data is None
    assert names == {f"large.tracea.{ending}" for ending in ("onnx", "so", "json")}
    x = {"x": np.ones((2, 1472), np.float32)}
    found = answers(Path(report.output), x, Path(str(report.library)))
    assert error_between(found, answers(large[0], x)) < CLOSE


def test_a_result_can_be_optimized_again(result: Path, original: Path, tmp_path: Path) -> None:
    report = api.optimize(result, Options(tmp_path, keep="all"))
    assert any("is a result of this tool" in warning for warning in report.warnings)
    found = answers(Path(report.output), padded_text(), None)
    assert error_between(found, answers(original, padded_text())) < CLOSE


@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        (Options(only=("attention",)), {"FusedAttention"}, {"FusedGemm", "FusedNorm"}),
        (Options(skip=("attention", "cluster")), {"FusedGemm"}, {"FusedAttention"}),
    ],
)
def test_rules_can_be_chosen(
    original: Path, tmp_path: Path, options: Options, present: set[str], absent: set[str]
) -> None:
    chosen = Options(tmp_path, keep="all", verify=False, only=options.only, skip=options.skip)
    with highest_level():
        report = api.optimize(original, chosen)
    kinds = {row.group.partition("_")[0] for row in report.groups}
    assert present <= kinds and not absent & kinds
    found = answers(Path(report.output), padded_text(), Path(str(report.library)))
    assert error_between(found, answers(original, padded_text())) < CLOSE


def test_what_is_faster_is_found_by_timing(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine as it was measured, and as busy as it is."""
    monkeypatch.setattr(backend, "measured_machine", measured_machine)
    report = api.optimize(original, Options(tmp_path, threads=(1,), budget=20.0, use_cache=False))
    assert [row.threads for row in (*report.timings, *report.tried)] == [1]
    assert all(row.code is not Code.UNMEASURED for row in report.groups)
    found = answers(Path(report.output), padded_text(), report.library and Path(report.library))
    assert error_between(found, answers(original, padded_text())) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "most"),
    [("int8", 0.05), ("int4-weights", 0.3)],
)
def test_integers_are_within_what_is_accepted(
    precision: str, most: float, original: Path, tmp_path: Path
) -> None:
    options = Options(tmp_path, keep="all", precision=precision, max_error=most)
    report = api.optimize(original, options)
    assert report.status == "passed" and report.kernels
    wanted, found = (answers(path, padded_text()) for path in (original, Path(report.output)))
    assert 1e-4 < error_between(found, wanted) < most
