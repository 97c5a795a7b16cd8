"""Libraries for other machines, run by emulators: results equal ONNX Runtime's on this machine.

One build writes each model's libraries for Arm and for Windows, a small one's for every release
line of ONNX Runtime also for this machine.  Emulators know no speed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from models.make import make
from tests.deploy.emulation import (
    NEEDS_ARM,
    NEEDS_WINE,
    NEEDS_X86,
    RELEASES,
    ROOT,
    WINDOWS_RELEASES,
    ArmLinux,
    Linux,
    Windows,
)
from tests.tiny import Array
from tracea_graph import Options, api
from tracea_graph.kernels.cpu.isa_levels import ARM
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.inputs import gather_inputs

pytestmark = pytest.mark.slow

CORPUS = ROOT.parent / "shared" / "corpus" / "real"
PUBLIC = tuple(sorted(path.stem for path in CORPUS.glob("*.onnx")))
SMALL, LARGE = ("tiny-bert", "mobilenetv2"), ("minilm", "resnet50")
TARGETS = "linux-aarch64,windows-x86_64"
HERE_TOO = "tiny-bert"
"""The model that is also built for this machine, by the same compiler."""
TOLERANCES = {np.dtype(np.float16): 1e-2, np.dtype(np.float32): 1e-4}
"""Largest error, as a share of the largest value, by the type of the original's results."""
LEVELS = tuple(isa.name for isa in (*ARM.plain, *ARM.int8))
KERNELS = (
    "gemm", "gemm_bf16", "gemm_bf16x2", "gemm_int8", "gemm_int16", "gemm_nbits", "gemm_bitmap",
    "gemm_block_sparse", "attention", "attention_bf16", "norm", "softmax", "reduce", "copy",
    "gather", "arg_reduce", "top_k", "chain_kernel",
)  # fmt: skip
"""Files of tests of micro-kernels, ``tests/kernels/test_NAME.py``."""
RUN_SECONDS, TEST_SECONDS = 900.0, 3600.0


@dataclass(frozen=True)
class Case:
    """A result, what its original is fed with and what it answers."""

    result: Path
    feeds: Mapping[str, Array]
    answers: tuple[Array, ...]

    def check(self, results: list[Array]) -> None:
        assert len(results) == len(self.answers)
        for got, want in zip(results, self.answers, strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            if want.dtype.kind != "f":
                np.testing.assert_array_equal(got, want)
                continue
            largest = max(float(np.abs(want, dtype=np.float64).max(initial=0.0)), 1e-6)
            error = np.abs(got.astype(np.float64) - want).max(initial=0.0)
            assert error <= TOLERANCES[want.dtype] * largest


CaseOf = Callable[[str], Case]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> CaseOf:
    """A result by its original's name, built when it is asked for first."""
    folder = tmp_path_factory.mktemp("emulated")

    @cache
    def made(name: str) -> Case:
        if name in PUBLIC:
            source = Path(shutil.copy(CORPUS / f"{name}.onnx", folder))
        else:
            source = make(name, folder)
        result = folder / f"{name}.result.onnx"
        targets = f"{TARGETS},linux-x86_64" if name == HERE_TOO else TARGETS
        report = api.optimize(source, Options(result, target=targets, keep="all", effort="quick"))
        assert report.outcome == "improved", report.reason
        inputs = gather_inputs(load(source), Options(seed=9))
        feeds = dict(inputs.verification[inputs.foremost])
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(source, options)
        return Case(result, feeds, tuple(session.run(None, feeds)))

    return made


@pytest.fixture(scope="module")
def arm() -> ArmLinux:
    return ArmLinux()


@pytest.fixture(scope="module")
def windows() -> Windows:
    return Windows()


def on_linux(
    machine: Linux | ArmLinux, case: Case, folder: Path, suffix: str, **environment: str
) -> str:
    """Run a result with the library of that suffix, if any; returns the runtime's version."""
    feeds, out = folder / "feeds.npz", folder / "out.npz"
    np.savez(feeds, **case.feeds)
    names = (case.result, feeds, out, *([case.result.with_suffix(suffix)] if suffix else []))
    program = str(ROOT / "tests/deploy/run_model.py")
    said = machine.run(program, *map(str, names), seconds=RUN_SECONDS, **environment)
    with np.load(out) as found:
        case.check([found[name] for name in found.files])
    return said.strip()


def on_arm(arm: ArmLinux, case: Case, folder: Path, library: bool, **environment: str) -> None:
    on_linux(arm, case, folder, ".so" if library else "", **environment)


def on_windows(
    windows: Windows, case: Case, folder: Path, library: bool, **environment: str
) -> str:
    """Run a result; returns the runtime's version."""
    words = []
    for name, array in case.feeds.items():
        raw = folder / f"{len(words)}.raw"
        array.tofile(raw)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        words += [name, str(kind), str(raw), str(array.ndim), *map(str, array.shape)]
    dll = str(case.result.with_suffix(".dll")) if library else "-"
    out = folder / "out"
    said = windows.run(
        str(case.result), dll, str(out), "2", *words, seconds=RUN_SECONDS, **environment
    )
    case.check([
        np.fromfile(f"{out}.{i}", want.dtype).reshape(want.shape)
        for i, want in enumerate(case.answers)
    ])  # fmt: skip
    return said.split()[0]


@NEEDS_ARM
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_conform_at_every_level_of_arm(arm: ArmLinux, kernel: str) -> None:
    said = arm.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/kernels/test_{kernel}.py", "-k",
        "neon", seconds=TEST_SECONDS,
    )  # fmt: skip
    assert " passed" in said and " skipped" not in said


@NEEDS_ARM
@pytest.mark.parametrize("library", [True, False], ids=["kernels", "bodies"])
@pytest.mark.parametrize("name", [*SMALL, *PUBLIC])
def test_models_answer_on_arm(
    case_of: CaseOf, arm: ArmLinux, name: str, library: bool, tmp_path: Path
) -> None:
    on_arm(arm, case_of(name), tmp_path, library)


@NEEDS_ARM
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SMALL)
def test_every_level_of_arm_answers(
    case_of: CaseOf, arm: ArmLinux, name: str, level: str, tmp_path: Path
) -> None:
    on_arm(arm, case_of(name), tmp_path, True, TRACEA_ISA=level)


@NEEDS_WINE
@pytest.mark.parametrize("library", [True, False], ids=["kernels", "bodies"])
@pytest.mark.parametrize("name", [*SMALL, *LARGE, *PUBLIC])
def test_models_answer_on_windows(
    case_of: CaseOf, windows: Windows, name: str, library: bool, tmp_path: Path
) -> None:
    on_windows(windows, case_of(name), tmp_path, library)


@NEEDS_WINE
@pytest.mark.parametrize("level", ["scalar", "avx2"])
def test_lower_levels_answer_on_windows(
    case_of: CaseOf, windows: Windows, level: str, tmp_path: Path
) -> None:
    on_windows(windows, case_of("tiny-bert"), tmp_path, True, TRACEA_ISA=level)


@NEEDS_X86
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_answers_here(case_of: CaseOf, release: str, tmp_path: Path) -> None:
    said = on_linux(Linux(release), case_of(HERE_TOO), tmp_path, ".x86_64.so")
    assert said == release


@NEEDS_ARM
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_answers_on_arm(case_of: CaseOf, release: str, tmp_path: Path) -> None:
    assert on_linux(ArmLinux(release), case_of(HERE_TOO), tmp_path, ".so") == release


@NEEDS_WINE
@pytest.mark.parametrize("release", WINDOWS_RELEASES)
def test_every_release_answers_on_windows(case_of: CaseOf, release: str, tmp_path: Path) -> None:
    assert on_windows(Windows(release), case_of(HERE_TOO), tmp_path, True) == release


@NEEDS_ARM
def test_retuning_on_arm_needs_no_compiler(case_of: CaseOf, arm: ArmLinux, tmp_path: Path) -> None:
    """It settles there what could not be measured here, with what the result carries."""
    case = case_of("tiny-bert")
    for path in case.result.parent.glob(f"{case.result.stem}.*"):
        shutil.copy(path, tmp_path)
    own = replace(case, result=tmp_path / case.result.name)
    said = arm.run(
        "-m", "tracea_graph", "bench", str(own.result), "--retune", "--budget", "60",
        "--threads", "1", seconds=RUN_SECONDS, CXX=str(tmp_path / "none"),
    )  # fmt: skip
    assert "kernel types kept" in said
    on_arm(arm, own, tmp_path, own.result.with_suffix(".so").exists())
