"""``tracea bench --retune``: what loses here gets its body back, nothing is compiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.tiny import answers, error_between, padded_text, product, transformer
from tracea_graph import Options, optimize
from tracea_graph.check.rewrite_selection import GroupSelection, GroupVerdict, RewriteGroup
from tracea_graph.check.timing_statistics import Ratio
from tracea_graph.cli import main
from tracea_graph.commands import drop_slower_kernels as retune_module
from tracea_graph.commands.drop_slower_kernels import retune, strip_custom_ops
from tracea_graph.errors import UsageError, VerifyError

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
QUICK = Options(threads=(1,), budget=5.0)
CLOSE = 1e-5


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    model = transformer(folder)
    optimize(model, Options(keep="all", verify=False, skip=("cluster",)))
    return folder


@pytest.fixture
def deployed(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only what a target machine needs, which has no compiler."""
    for ending in ("onnx", "so"):
        shutil.copy(built / f"tiny-bert.tracea.{ending}", tmp_path)
    monkeypatch.setenv("CXX", "/no/compiler")
    return tmp_path / "tiny-bert.tracea.onnx"


Losing = Callable[[str], bool]


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Losing], None]:
    """Make measuring say that some types lose."""

    def lose(loses: Losing) -> None:
        def decided(
            original: Path, groups: Sequence[RewriteGroup], build: Any, feeds: Any, **_: Any
        ) -> GroupSelection:
            dropped = frozenset(g.key for g in groups if loses(g.key))
            verdicts = tuple(GroupVerdict(g, g.key not in dropped, "measured") for g in groups)
            kept = frozenset(g.key for g in groups) - dropped
            total = {(1, "x"): Ratio(1.02, 0.9, 1.1, 15, 1.02, 1.0, 1.0, 1.0)}
            return GroupSelection(kept, verdicts, total, build(dropped) if kept else None)

        monkeypatch.setattr(retune_module, "select_faster", decided)

    return lose


def kinds(path: Path) -> set[str]:
    domains = {n.op_type: n.domain for n in onnx.load(path, load_external_data=False).graph.node}
    return {op.split("_")[0] for op, domain in domains.items() if domain}


def right(path: Path, original: Path, feeds: Mapping[str, Any]) -> bool:
    expected = answers(original, feeds, level="off")
    library = path.with_suffix(".so")
    ways = [None, library] if library.exists() else [None]
    return all(error_between(answers(path, feeds, way), expected) < CLOSE for way in ways)


def test_a_type_that_loses_gets_its_bodies_back(
    deployed: Path, built: Path, losing: Callable[[Losing], None]
) -> None:
    losing(lambda t: t.startswith("FusedAttention"))
    library = deployed.with_suffix(".so").read_bytes()
    before = kinds(deployed)
    found = retune(deployed, QUICK)
    assert [t.split("_")[0] for t in found.dropped] == ["FusedAttention"]
    assert kinds(deployed) == before - {"FusedAttention"}
    assert deployed.with_suffix(".so").read_bytes() == library
    assert {f.name.split("_")[0] for f in onnx.load(deployed).functions} == kinds(deployed)
    assert right(deployed, built / "tiny-bert.onnx", padded_text())
    onnx.checker.check_model(deployed, full_check=True)
    record = json.loads(deployed.with_suffix(".json").read_text())
    assert record["retuned"]["rows"] and record["data"] is None
    assert {p.name.split(".")[-1] for p in deployed.parent.iterdir()} == {"onnx", "so", "json"}


def test_a_second_run_retunes_what_is_left(
    deployed: Path, losing: Callable[[Losing], None]
) -> None:
    losing(lambda t: t.startswith("FusedAttention"))
    retune(deployed, QUICK)
    losing(lambda t: t.startswith("FusedGemm"))
    retune(deployed, QUICK)
    assert not kinds(deployed) & {"FusedAttention", "FusedGemm"}
    assert kinds(deployed)


def test_where_all_lose_plain_onnx_is_left(
    deployed: Path, built: Path, losing: Callable[[Losing], None]
) -> None:
    losing(lambda t: True)
    assert not retune(deployed, QUICK).speedup
    assert kinds(deployed) == set()
    assert not deployed.with_suffix(".so").exists()
    assert not onnx.load(deployed).functions
    assert right(deployed, built / "tiny-bert.onnx", padded_text())


def test_where_none_loses_no_file_changes(
    deployed: Path, losing: Callable[[Losing], None]
) -> None:
    losing(lambda t: False)
    before = {p: p.read_bytes() for p in deployed.parent.iterdir()}
    assert retune(deployed, QUICK).dropped == ()
    assert {p: p.read_bytes() for p in deployed.parent.iterdir()} == before


def test_large_weights_move_to_a_new_data_file(
    tmp_path: Path, losing: Callable[[Losing], None]
) -> None:
    original = product(tmp_path / "large.onnx", 1472, 1472, copies=2)
    result = Path(optimize(original, Options(keep="all", verify=False)).output)
    losing(lambda t: True)
    retune(result, QUICK)
    (data,) = tmp_path.glob("*.data")
    assert json.loads(result.with_suffix(".json").read_text())["data"] == data.name
    assert right(result, original, {"x": np.ones((3, 1472), np.float32)})


def test_it_measures(deployed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("bench", str(deployed), "--retune", "--threads", "1", "--budget", "10", "--json")
    assert main(args) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    kept = {row["type"] for row in rows if row["kept"]}
    assert len(rows) > 3 and all(row["reason"] for row in rows)
    assert kinds(deployed) == {t.split("_")[0] for t in kept}


def test_what_cannot_be_retuned_says_why(deployed: Path, built: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no kernels to retune: it is plain ONNX"):
        retune(built / "tiny-bert.onnx", QUICK)
    library = deployed.with_suffix(".so")
    data = library.read_bytes()
    library.unlink()
    with pytest.raises(UsageError, match=r"no kernels to retune: put tiny-bert\.tracea\.so"):
        retune(deployed, QUICK)
    library.write_bytes(data[:-1])
    with pytest.raises(UsageError, match="is not the library"):
        retune(deployed, QUICK)


def test_kernels_that_are_wrong_here_are_an_error(
    deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(path: Path, out: Path) -> None:
        strip_custom_ops(path, out)
        model = onnx.load(out)
        big = max(model.graph.initializer, key=lambda t: np.prod(t.dims))
        values = onnx.numpy_helper.to_array(big) * np.float32(2)
        big.CopyFrom(onnx.numpy_helper.from_array(values, big.name))
        onnx.save(model, out)

    monkeypatch.setattr(retune_module, "strip_custom_ops", wrong)
    before = deployed.read_bytes()
    with pytest.raises(VerifyError, match="is wrong on this machine"):
        retune(deployed, QUICK)
    assert deployed.read_bytes() == before
