"""Initializers that are inputs too: fast while nobody feeds them, and right when somebody does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import session
from tests.tiny import answers, error_between, fed_too, product
from tracea_graph import Options, Report, optimize
from tracea_graph.commands.bench import BenchOptions, model_subject
from tracea_graph.commands.drop_slower_kernels import retune, strip_custom_ops
from tracea_graph.commands.profile import profile
from tracea_graph.commands.verify import verify_models
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import Model, initializer_guards, load
from tracea_graph.pipeline import candidate_models, planning
from tracea_graph.target import BACKENDS, Backend

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
UNTIMED = Options(keep="all")
CLOSE = 1e-5
CHANNELS, SIZE, LAYERS = 32, 20, 3


def convolutions(path: Path, channels: int = CHANNELS, external: str = "") -> Path:
    """Convolutions, each with a BatchNormalization and an activation, as old exporters wrote them:
    every weight is an input too."""
    rng, nodes, held, value = np.random.default_rng(2), [], dict[str, Any](), "x"
    for i in range(LAYERS):
        held[f"w{i}"] = rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)
        held |= {f"{n}{i}": rng.standard_normal(channels) for n in ("scale", "b", "mean")}
        held[f"var{i}"] = rng.random(channels) + 0.5
        norm = [f"{n}{i}" for n in ("scale", "b", "mean", "var")]
        result = "y" if i == LAYERS - 1 else f"y{i}"
        nodes += [
            helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"c{i}", *norm], [f"n{i}"], f"norm{i}"),
            helper.make_node("Relu", [f"n{i}"], [result], f"relu{i}"),
        ]
        value = result
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    x, y = (
        helper.make_tensor_value_info(v, TensorProto.FLOAT, ["n", channels, SIZE, SIZE])
        for v in ("x", "y")
    )
    graph = helper.make_graph(nodes, "convolutions", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=1024)
    else:
        onnx.save(model, path)
    return fed_too(path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarded")
    return convolutions(folder / "m.onnx")


@pytest.fixture(scope="module")
def report(original: Path) -> Report:
    return optimize(original, UNTIMED)


def weights(path: Path) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def x(seed: int = 0, images: int = 2, channels: int = CHANNELS) -> dict[str, Any]:
    shape = images, channels, SIZE, SIZE
    return {"x": np.random.default_rng(seed).standard_normal(shape, np.float32)}


def overrides(path: Path) -> list[dict[str, Any]]:
    """Other values for some weights: all, one, a vector, one bit of one."""
    held = weights(path)
    scaled = {name: w * np.float32(1.5) for name, w in held.items()}
    bit = held["w1"].copy()
    bit.view(np.uint32)[-1, -1, -1, -1] ^= 1 << 22
    return [scaled, {"w2": scaled["w2"]}, {"b0": -held["b0"]}, {"w1": bit}]


def test_the_default_runs_kernels_on_packed_weights(original: Path, report: Report) -> None:
    assert report.outcome == "improved" and report.status == "passed"
    assert report.error is not None and report.error < CLOSE
    result = Path(report.output)
    assert initializer_guards.is_guarded(load(result))
    domains = [
        n.op_type.split("_")[0]
        for n in initializer_guards.result_nodes(onnx.load(result))
        if n.domain
    ]
    assert domains == ["Guard", "FusedRegion"]
    expected = answers(original, x())
    for level in ("off", "all"):
        found = answers(result, x(), Path(str(report.library)), level)
        assert error_between(found, expected) < CLOSE
    assert any("are now constants" in note for note in report.notes)
    assert not any("freeze-initializers" in warning for warning in report.warnings)


def test_the_interface_is_the_originals(original: Path, report: Report) -> None:
    before, after = (onnx.load(path).graph for path in (original, Path(report.output)))
    assert [*after.input] == [*before.input] and [*after.output] == [*before.output]
    held = weights(Path(report.output))
    for name, weight in weights(original).items():
        assert held[name].tobytes() == weight.tobytes()


@pytest.mark.parametrize("which", range(4))
def test_what_is_fed_is_computed_with(which: int, original: Path, report: Report) -> None:
    """By the original's nodes, bit for bit, with the library and without."""
    given = x() | overrides(original)[which]
    expected = answers(original, given)["y"]
    for library in (Path(str(report.library)), None):
        found = answers(Path(report.output), given, library)["y"]
        assert found.tobytes() == expected.tobytes()


def test_outputs_may_have_other_sizes_than_the_model_says(original: Path, tmp_path: Path) -> None:
    """ONNX Runtime warns of it; in a branch it would trust them."""
    model = onnx.load(original)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "m.onnx")
    report = optimize(tmp_path / "m.onnx", UNTIMED)
    result, library = Path(report.output), Path(str(report.library))
    assert initializer_guards.is_guarded(load(result))
    for given in (x(images=3), x(images=3) | overrides(original)[1]):
        found, expected = answers(result, given, library), answers(original, given)
        assert found["y"].shape[0] == 3 and error_between(found, expected) < CLOSE


def test_feeding_the_defaults_is_feeding_nothing(original: Path, report: Report) -> None:
    result, library = Path(report.output), Path(str(report.library))
    plain = answers(result, x(), library)["y"]
    assert answers(result, x() | weights(original), library)["y"].tobytes() == plain.tobytes()


def test_without_the_library_it_is_the_original(original: Path, report: Report) -> None:
    expected = answers(original, x())["y"]
    assert answers(Path(report.output), x())["y"].tobytes() == expected.tobytes()


def opened(path: Path, library: Path | None = None) -> ort.InferenceSession:
    return session(path, library, optimized=True, threads=2)


def test_runs_at_the_same_time_see_their_own_weights(original: Path, report: Report) -> None:
    plain, made = opened(original), opened(Path(report.output), Path(str(report.library)))
    given: list[Mapping[str, Any]] = [x(1), *(x(i) | o for i, o in enumerate(overrides(original)))]
    expected = [plain.run(None, feed)[0] for feed in given]

    def error(i: int) -> float:
        which = i % len(given)
        found = made.run(None, given[which])[0]
        return float(np.abs(found - expected[which]).max() / np.abs(expected[which]).max())

    with ThreadPoolExecutor(8) as pool:
        errors = list(pool.map(error, range(300)))
    assert max(errors) < CLOSE
    assert all(e == 0 for i, e in enumerate(errors) if i % len(given))


def test_a_weight_that_changes_in_place_is_seen(original: Path, report: Report) -> None:
    """The same address, other bytes: what a comparison of addresses would miss."""
    plain, made = opened(original), opened(Path(report.output), Path(str(report.library)))
    held = weights(original)["w1"].copy()
    for scale in (1.0, 2.0, 1.0):
        held[...] = weights(original)["w1"] * np.float32(scale)
        given = x() | {"w1": held}
        found, wanted = made.run(None, given)[0], plain.run(None, given)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_tools_see_through_it(original: Path, report: Report, tmp_path: Path) -> None:
    result = Path(report.output)
    one = model_subject(result)
    assert (one.kernels, one.nodes) == (2, 2)
    compared = verify_models(original, result, UNTIMED)
    assert compared.verification.status == "passed" and compared.kernels == one.kernels
    back = strip_custom_ops(result, tmp_path / "back.onnx").model
    for feeds in (x(), x() | overrides(original)[0]):
        expected = answers(original, feeds)["y"]
        assert answers(back, feeds)["y"].tobytes() == expected.tobytes()
    assert {n.op_type for n in onnx.load(back).graph.node} == {
        "Conv", "BatchNormalization", "Relu",
    }  # fmt: skip
    with pytest.raises(UsageError, match="optimize the original here instead"):
        retune(result, UNTIMED)


def test_a_profile_counts_nodes_in_the_branch_once(report: Report) -> None:
    found = profile(Path(report.output), BenchOptions(threads=(1,), pairs=3, seconds=2.0))
    assert sorted(row.op.split("_")[0] for row in found.rows) == ["FusedRegion", "Guard"]
    (guard,) = (row for row in found.rows if row.op.startswith("Guard"))
    assert {call.op for call in guard.calls} == {"bytes_equal"}


def test_an_equal_run_from_a_lock_gives_equal_files(original: Path, tmp_path: Path) -> None:
    lock = tmp_path / "plan.json"
    outs = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    optimize(original, replace(UNTIMED, output=outs[0], save_lock=lock))
    optimize(original, replace(UNTIMED, output=outs[1], lock=lock))
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_what_products_gain_needs_no_guard(tmp_path: Path) -> None:
    """They read weights as they lie; what is fed runs on kernels, too."""
    path = fed_too(product(tmp_path / "m.onnx", 64, 64, copies=2), "b0")
    report = optimize(path, UNTIMED)
    assert report.outcome == "improved" and not initializer_guards.is_guarded(
        load(Path(report.output))
    )
    rows = {"x": np.random.default_rng(1).standard_normal((5, 64), np.float32)}
    given = rows | {"b0": np.zeros(64, np.float32)}
    found = answers(Path(report.output), given, Path(str(report.library)))
    assert error_between(found, answers(path, given)) < CLOSE


def test_more_initializers_than_one_node_compares(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(BACKENDS[0]), "most_guarded", 2)
    report = optimize(original, replace(UNTIMED, output=tmp_path / "m.onnx"))
    result, library = Path(report.output), Path(str(report.library))
    ops = [n.op_type.split("_")[0] for n in onnx.load(result).graph.node]
    count = -(-5 * LAYERS // 2)
    assert ops == [*["Guard"] * count, *["And"] * (count - 1), "If"]
    for given in (x(), *(x() | o for o in overrides(original))):
        assert error_between(answers(result, given, library), answers(original, given)) < CLOSE


def test_external_weights_are_stored_once(tmp_path: Path) -> None:
    """The reference of a default is the default itself, in a data file."""
    path = convolutions(tmp_path / "m.onnx", channels=512, external="weights.bin")
    report = optimize(path, UNTIMED)
    stored = {
        t.name: {e.key: e.value for e in t.external_data}
        for t in onnx.load(report.output, load_external_data=False).graph.initializer
    }
    assert stored["w1"] and stored["w1"] == stored[initializer_guards.default_constant_name("w1")]
    given = x(images=1, channels=512)
    found = answers(Path(report.output), given, Path(str(report.library)))
    assert error_between(found, answers(path, given)) < CLOSE


def test_verification_sees_what_is_fed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that compares nothing but a bias does not pass."""

    def one_alone(model: Model, backend: Backend) -> tuple[planning.InitializerGuard, ...]:
        few = {name: w for name, w in model.guarded.items() if name.startswith("b")}
        return guards_of(replace(model, guarded=few), backend) if few else ()

    guards_of = planning.guards_of
    monkeypatch.setattr(candidate_models, "guards_of", one_alone)
    report = optimize(original, replace(UNTIMED, output=tmp_path / "m.onnx"))
    assert report.outcome == "kept original" and "fed" in report.reason


def test_where_nothing_is_placed_the_original_is_kept(original: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    report = optimize(original, replace(UNTIMED, only=("attention",), output=out))
    assert report.outcome == "kept original" and out.read_bytes() == original.read_bytes()
    told = json.loads(out.with_suffix(".json").read_text())
    assert any("--freeze-initializers" in w for w in told["warnings"])
