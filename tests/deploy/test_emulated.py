"""Libraries for other machines, run by emulators: results equal ONNX Runtime's on this machine.

One build writes each model's libraries for Arm and for Windows, a small one's for every release
line of ONNX Runtime also for this machine.  Emulators know no speed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
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
from tracea_graph.ir import RANDOM_OPS
from tracea_graph.kernels.cpu.isa_levels import ARM
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

pytestmark = pytest.mark.slow

CORPUS = ROOT.parent / "shared" / "corpus" / "real"
CRASHES = "openmip-app.github.io__centroid_score_int8"
"""A model whose original divides by zero in ONNX Runtime, which ends the process."""
SCALES = {"obs-backgroundremoval__SINet_Softmax": 0.01}
"""What inputs are scaled by where numbers of size 1 saturate the results, which are noise then."""
PUBLIC = tuple(sorted(path.stem for path in CORPUS.glob("*.onnx") if path.stem != CRASHES))
SMALL, LARGE = ("tiny-bert", "mobilenetv2"), ("minilm", "resnet50")
TARGETS = "linux-aarch64,windows-x86_64"
HERE_TOO = "tiny-bert"
"""The model that is also built for this machine, by the same compiler."""
IN_ORDER = "cortex-a53"
"""A core that runs in order, as qemu calls it."""
PRECISIONS = ("bf16", "bf16x2", "int16", "fp16")
HIGHEST = {"fp16": ARM.fp16[-1].name}
"""The highest level by precision, if it is not that for bf16."""
TOLERANCES = {np.dtype(np.float16): 1e-2, np.dtype(np.float32): 1e-4}
"""Largest error, as a share of the largest value, by the type of the original's results."""
ROUNDED = 2e-2
"""The same of results that are computed in fewer bits."""
LEVELS = tuple(isa.name for isa in (*ARM.plain, *ARM.int8))
KERNELS = (
    "gemm", "gemm_bf16", "gemm_bf16x2", "gemm_int8", "gemm_int16", "gemm_nbits", "gemm_bitmap",
    "gemm_block_sparse", "attention", "attention_bf16", "attention_cached", "norm", "softmax",
    "reduce", "copy", "gather", "arg_reduce", "top_k", "chain_kernel", "gemm_f16",
)  # fmt: skip
"""Files of tests of micro-kernels, ``tests/kernels/test_NAME.py``."""
RUN_SECONDS, TEST_SECONDS = 900.0, 3600.0


@dataclass(frozen=True)
class Case:
    """A result, what its original is fed with and what it answers.

    ``drawn`` are the places of answers that depend on random numbers.
    """

    result: Path
    feeds: Mapping[str, Array]
    answers: tuple[Array, ...]
    drawn: frozenset[int]
    precision: str = "fp32"

    def check(self, results: Sequence[Array], again: Sequence[Array] = ()) -> None:
        """The answers are right, and the same when they are asked for again."""
        assert len(results) == len(self.answers)
        for i, (got, want) in enumerate(zip(results, self.answers, strict=True)):
            assert got.shape == want.shape and got.dtype == want.dtype
            if i in self.drawn:
                continue
            np.testing.assert_array_equal(again[i] if again else got, got)
            if want.dtype.kind != "f":
                np.testing.assert_array_equal(got, want)
                continue
            largest = max(float(np.abs(want, dtype=np.float64).max(initial=0.0)), 1e-6)
            error = np.abs(got.astype(np.float64) - want).max(initial=0.0)
            limit = TOLERANCES[want.dtype] if self.precision == "fp32" else ROUNDED
            assert error <= limit * largest


def drawn_outputs(model: onnx.ModelProto) -> frozenset[int]:
    """The places of outputs that depend on random operators."""
    drawn: set[str] = set()
    for node in model.graph.node:
        if node.op_type in RANDOM_OPS or not drawn.isdisjoint(node.input):
            drawn.update(node.output)
    return frozenset(i for i, output in enumerate(model.graph.output) if output.name in drawn)


def scaled_inputs(source: Path, scale: float) -> Path:
    """A file of a model's inputs, times ``scale``."""
    inputs = gather_inputs(load(source), Options(seed=9))
    path = source.with_suffix(".npz")
    np.savez(path, **{name: scale * x for name, x in inputs.verification[inputs.foremost].items()})
    return path


def answered(
    source: Path, result: Path, precision: str = "fp32", data: Path | None = None
) -> Case:
    """A result and what its original answers on this machine, to ``data`` if given."""
    inputs = gather_inputs(load(source), Options(seed=9, data=data))
    feeds = dict(inputs.verification[inputs.foremost])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(source, options)
    drawn = drawn_outputs(onnx.load(source, load_external_data=False))
    return Case(result, feeds, tuple(session.run(None, feeds)), drawn, precision)


class CaseOf(Protocol):
    """Makes the case of a model's name."""

    def __call__(self, name: str, precision: str = "fp32") -> Case: ...


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> CaseOf:
    """A result by its original's name, built when it is asked for first."""
    folder = tmp_path_factory.mktemp("emulated")

    @cache
    def made(name: str, precision: str = "fp32") -> Case:
        if name in PUBLIC:
            source = Path(shutil.copy(CORPUS / f"{name}.onnx", folder))
        else:
            source = make(name, folder)
        data = scaled_inputs(source, SCALES[name]) if name in SCALES else None
        result = folder / f"{name}.{precision}.onnx"
        targets = f"{TARGETS},linux-x86_64" if name == HERE_TOO else TARGETS
        report = api.optimize(source, Options(
            result, data=data,
            target=targets if precision == "fp32" else "linux-aarch64", keep="all",
            effort="quick", precision=precision,
        ))  # fmt: skip
        assert report.outcome == "improved", report.reason
        return answered(source, result, precision, data)

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
        results = [found[name] for name in found.files]
    half = len(results) // 2
    case.check(results[:half], results[half:])
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
def test_programs_in_fp16_conform_on_arm(arm: ArmLinux) -> None:
    said = arm.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/runtime/test_runtime_fp16.py",
        seconds=TEST_SECONDS,
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


@NEEDS_ARM
@pytest.mark.parametrize("name", SMALL)
def test_a_core_that_runs_in_order_answers(
    case_of: CaseOf, arm: ArmLinux, name: str, tmp_path: Path
) -> None:
    on_arm(arm, case_of(name), tmp_path, True, QEMU_CPU=IN_ORDER)


@NEEDS_ARM
@pytest.mark.parametrize("core", [IN_ORDER, "cortex-a57", "max"])
def test_a_core_that_runs_in_order_is_known(arm: ArmLinux, core: str, tmp_path: Path) -> None:
    source, program = tmp_path / "in_order.cpp", tmp_path / "in_order"
    source.write_text(
        '#include "runtime/isa.h"\nint main() { return tracea::runs_in_order() ? 3 : 4; }\n'
    )
    folders = (f"-I{ROOT / name}" for name in ("kernels/cpu", "kernels"))
    arm.compile(*folders, "-std=c++17", str(source), "-o", str(program))
    assert arm.execute(program, core) == (3 if core == IN_ORDER else 4)


@NEEDS_ARM
@pytest.mark.parametrize("level", ["neon", ""])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SMALL)
def test_every_precision_answers_on_arm(
    case_of: CaseOf, arm: ArmLinux, name: str, precision: str, level: str, tmp_path: Path
) -> None:
    level = level or HIGHEST.get(precision, ARM.bf16[-1].name)
    on_arm(arm, case_of(name, precision), tmp_path, True, TRACEA_ISA=level)


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


@NEEDS_ARM
def test_the_tool_optimizes_on_arm(arm: ArmLinux, tmp_path: Path) -> None:
    """As on a machine of that kind, except that the compiler runs on this one."""
    source = make("tiny-bert", tmp_path)
    own = answered(source, tmp_path / "own.onnx")
    said = arm.run(
        "-m", "tracea_graph", "optimize", str(source), "-o", str(own.result), "--keep", "all",
        "--effort", "quick", "--threads", "1", "--budget", "900", seconds=TEST_SECONDS,
    )  # fmt: skip
    assert own.result.with_suffix(".so").exists(), said
    on_arm(arm, own, tmp_path, library=True)
