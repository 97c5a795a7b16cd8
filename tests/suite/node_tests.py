"""onnx's own backend tests as files: a model each, and its inputs if an ``.npz`` can hold them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tracea_graph.check.worker_process import Array, RejectedByRuntime, Worker
from tracea_graph.config import TOLERANCE

__all__ = ["Case", "Original", "light_models", "run_original", "same", "write_cases"]

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
_RAW = frozenset(
    ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
)


@dataclass(frozen=True)
class Case:
    """One backend test; ``feeds`` and ``expected`` are None where an input is no plain tensor."""

    model: Path
    feeds: Mapping[str, Array] | None
    expected: Sequence[Any]
    rtol: float
    atol: float

    @property
    def name(self) -> str:
        return self.model.stem


@dataclass(frozen=True)
class Original:
    """ONNX Runtime's outputs of a case; ``trouble`` says why they are nothing to be equal to."""

    outputs: Mapping[str, Array]
    trouble: str = ""


def write_cases(models: Path, data: Path, only: slice = slice(None)) -> list[Case]:
    """All backend tests, or some of each kind, written into two folders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its generators divide by zero on purpose
        found = [test for kind in KINDS for test in load_model_tests(kind=kind)[only]]
    return [_written(test, models, data) for test in found]


def light_models() -> list[Path]:
    """onnx's nets without weights."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("light_*.onnx"))


def run_original(worker: Worker, case: Case) -> Original:
    """Run a case in ONNX Runtime alone and compare with what onnx expects."""
    try:
        worker.open("original", case.model)
    except RejectedByRuntime:
        return Original({}, "ONNX Runtime does not load it")
    if case.feeds is None:
        return Original({}, "its inputs are no plain tensors")
    try:
        outputs = worker.run("original", case.feeds)
    except RejectedByRuntime:
        return Original({}, "ONNX Runtime does not run it")
    right = len(outputs) == len(case.expected) and all(
        _close(y, want, case) for y, want in zip(outputs.values(), case.expected, strict=True)
    )
    return Original(outputs, "" if right else "ONNX Runtime's outputs are not onnx's")


def same(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> str:
    """What differs between two sets of outputs; empty if they are equal within tolerance."""
    if found.keys() != wanted.keys():
        return f"outputs {sorted(found)}, not {sorted(wanted)}"
    return "; ".join(filter(None, (_difference(n, found[n], wanted[n]) for n in wanted)))


def _difference(name: str, y: Array, want: Array) -> str:
    if y.shape != want.shape or y.dtype != want.dtype:
        return f"{name} is {y.dtype}{y.shape}, not {want.dtype}{want.shape}"
    if want.dtype.kind not in "fV":
        return "" if np.array_equal(y, want) else f"{name} differs"
    a, b = y.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    elsewhere = not np.array_equal(a[~finite], b[~finite], equal_nan=True)
    if elsewhere or not np.isfinite(a[finite]).all():
        return f"{name} has NaN or infinities elsewhere"
    largest = np.abs(b[finite]).max(initial=0.0)
    error = np.abs(a[finite] - b[finite]).max(initial=0.0) / (largest or 1.0)
    allowed = max(TOLERANCE.exact, float(ml_dtypes.finfo(want.dtype).eps))
    return "" if error <= allowed else f"{name} is off by {error:.1e} of max|y|"


def _written(test: TestCase, models: Path, data: Path) -> Case:
    model = test.model
    if model is None:
        model = onnx.load(Path(str(test.model_dir)) / "model.onnx")
    path = models / f"{test.name}.onnx"
    onnx.save(model, path)
    inputs, outputs = _first_set(test, model)
    fed = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in fed][: len(inputs)]
    feeds = None
    if len(names) == len(inputs) and all(map(_plain, inputs)):
        feeds = {n: np.asarray(a) for n, a in zip(names, inputs, strict=True)}
        arrays = {n: _storable(a) for n, a in feeds.items()}
        np.savez(data / f"{test.name}.npz", **arrays)  # type: ignore[arg-type]
    return Case(path, feeds, outputs, test.rtol, test.atol)


def _first_set(test: TestCase, model: onnx.ModelProto) -> tuple[Sequence[Any], Sequence[Any]]:
    if test.data_sets is not None:
        inputs, outputs = test.data_sets[0]
        return [_array(v) for v in inputs], [_array(v) for v in outputs]
    folder = Path(str(test.model_dir)) / "test_data_set_0"
    sides = []
    for kind, ends in (("input", model.graph.input), ("output", model.graph.output)):
        files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda f: int(f.stem.rpartition("_")[2]))
        sides.append([_read(f, v.type) for f, v in zip(files, ends, strict=False)])
    return sides[0], sides[1]


def _read(file: Path, kind: onnx.TypeProto) -> npt.NDArray[Any] | None:
    """A stored tensor; None for sequences and the like."""
    if not kind.HasField("tensor_type"):
        return None
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def _array(value: Any) -> Any:
    """Some cases spell their arrays as protobuf tensors."""
    tensor = isinstance(value, onnx.TensorProto)
    return onnx.numpy_helper.to_array(value) if tensor else value


def _storable(array: Array) -> Array:
    """As an ``.npz`` can hold it: strings of fixed width, types NumPy lacks as their bits."""
    if array.dtype.kind == "O":
        return array.astype(np.str_)
    return array.view(f"V{array.itemsize}") if array.dtype.name in _RAW else array


def _plain(value: object) -> bool:
    """True for arrays of NumPy's own types, and of those that travel as bits."""
    if not isinstance(value, np.ndarray | np.generic):
        return False
    own = value.dtype.kind in "biufcOU" and value.dtype.isbuiltin == 1
    return own or value.dtype.name in _RAW


def _close(y: Array, want: Any, case: Case) -> bool:
    if not isinstance(want, np.ndarray | np.generic) or y.shape != np.shape(want):
        return False
    want = np.asarray(want)
    if y.dtype.kind not in "fV" or want.dtype.kind not in "fV":
        return bool(np.array_equal(y, want.astype(object) if y.dtype.kind == "O" else want))
    a, b = y.astype(np.float64), want.astype(np.float64)
    return bool(np.allclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True))
