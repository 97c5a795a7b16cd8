"""Files with long names, files that are none, data that is cut: one clear line, no waiting."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cli.support import UNTIMED, complaints
from tracea_graph.cli import main, optimize_main

PLAIN = (*UNTIMED, "-q", "--no-custom-ops")
SOMEWHERE = ("-o", "out.onnx")


def ends(capsys: pytest.CaptureFixture[str], command: Sequence[str], tool: bool = False) -> str:
    """The one line of a command that is refused."""
    assert (main if tool else optimize_main)(list(command)) == 2
    err = complaints(capsys.readouterr().err).lstrip("\n")
    assert err.startswith("error: ") and err.count("\n") == 1 and "(a bug" not in err
    return err


# ---- names -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [240, 245, 255])
def test_any_name_that_the_folder_can_have_will_do(home: Path, length: int) -> None:
    """Nothing that is written on the way has a longer name than the result."""
    source, result = ("a" * (length - 12), "b" * (length - 5))
    shutil.copy("good.onnx", f"{source}.onnx")
    assert optimize_main([f"{source}.onnx", *PLAIN]) == 0
    assert optimize_main([f"{source}.onnx", *PLAIN, "-o", f"{result}.onnx"]) == 0
    written = {path.name for path in home.iterdir()}
    assert {f"{source}.tracea.onnx", f"{result}.onnx"} < written


@pytest.mark.parametrize("length", [250, 255])
def test_a_result_whose_name_is_too_long(
    home: Path, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    name = "a" * (length - 5) + ".onnx"
    shutil.copy("good.onnx", name)
    said = ends(capsys, [name, *PLAIN])
    assert "is longer than the 255 bytes a file's name may have" in said
    assert "choose another with -o" in said
    assert optimize_main([name, *PLAIN, *SOMEWHERE]) == 0


@pytest.mark.parametrize(
    "command",
    [
        ("good.onnx", *PLAIN, "-o", f"{'x' * 4000}.onnx"),
        ("good.onnx", *PLAIN, "-o", "x" * 4000),
        ("good.onnx", *PLAIN, "--report", f"{'x' * 260}.html"),
        ("good.onnx", *PLAIN, "--save-lock", f"{'x' * 260}.json"),
        (f"{'x' * 260}.onnx", *PLAIN, *SOMEWHERE),
    ],
    ids=["result", "folder", "report", "plan", "model"],
)
def test_names_that_no_file_can_have(
    home: Path, capsys: pytest.CaptureFixture[str], command: Sequence[str]
) -> None:
    ends(capsys, command)
    assert [path.name for path in home.iterdir()] == ["good.onnx"]


def test_a_model_with_a_long_name_races_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{'a' * 250}.onnx"
    shutil.copy("good.onnx", name)
    assert main(["bench", name, "--pairs", "1", "--threads", "1", "--json"]) == 0


# ---- what is no file ---------------------------------------------------------------------


@pytest.mark.parametrize("command", ["optimize", "inspect", "explain", "bench", "tune", "verify"])
def test_a_pipe_is_no_model(home: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """To open it would wait for whoever writes to it: for ever."""
    os.mkfifo("pipe.onnx")
    words = ["pipe.onnx", *(["good.onnx"] if command == "verify" else [])]
    said = ends(
        capsys, words if command == "optimize" else [command, *words], command != "optimize"
    )
    assert said == "error: pipe.onnx cannot be read: Not a regular file\n"


def test_a_device_is_no_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ends(capsys, ["/dev/zero", *SOMEWHERE])
    assert said == "error: /dev/zero cannot be read: Not a regular file\n"


def test_a_pipe_is_no_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.npz")
    said = ends(capsys, ["good.onnx", *UNTIMED, "--data", "pipe.npz"])
    assert "cannot read input data from pipe.npz: Not a regular file" in said


@pytest.mark.parametrize("ending", ["so", "json"])
def test_a_pipe_is_no_earlier_result(
    home: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    os.mkfifo(f"out.{ending}")
    said = ends(capsys, ["good.onnx", *UNTIMED, *SOMEWHERE])
    assert f"out.{ending} exists and was not written by this tool" in said


# ---- data that is damaged ----------------------------------------------------------------

HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': SHAPE, }"


def array_file(header: str) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


@pytest.mark.parametrize("length", [0, 3, 6, 9, 40, 127, 150])
def test_an_array_that_is_cut(home: Path, capsys: pytest.CaptureFixture[str], length: int) -> None:
    np.savez("whole.npz", x=np.ones((2, 32), np.float32))
    with zipfile.ZipFile("whole.npz") as whole, zipfile.ZipFile("cut.npz", "w") as cut:
        cut.writestr("x.npy", whole.read("x.npy")[:length])
    said = ends(capsys, ["good.onnx", *UNTIMED, "--data", "cut.npz"])
    assert "cannot read input data from cut.npz: " in said


@pytest.mark.parametrize(
    "shape", ["(10**9, 10**9)", "(999999999, 999999999)", "(9" + "9" * 30 + ",)", "[", "(" * 3000],
    ids=["power", "vast", "beyond", "open", "deep"],
)  # fmt: skip
def test_an_array_with_an_odd_header(
    home: Path, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    with zipfile.ZipFile("odd.npz", "w") as file:
        file.writestr("x.npy", array_file(HEADER.replace("SHAPE", shape)))
    said = ends(capsys, ["good.onnx", *UNTIMED, "--data", "odd.npz"])
    assert "cannot read input data from odd.npz: " in said and len(said) < 500


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 99)], ids=["encrypted", "compression"])
def test_an_archive_that_cannot_be_unpacked(
    home: Path, capsys: pytest.CaptureFixture[str], at: int, value: int
) -> None:
    np.savez("odd.npz", x=np.ones((2, 32), np.float32))
    data = bytearray(Path("odd.npz").read_bytes())
    data[at] = data[data.rfind(b"PK\1\2") + at + 2] = value
    Path("odd.npz").write_bytes(data)
    said = ends(capsys, ["good.onnx", *UNTIMED, "--data", "odd.npz"])
    assert "cannot read input data from odd.npz: " in said
