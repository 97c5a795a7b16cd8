"""A worker runs models, and whatever goes wrong in it stays in it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

from tests.check.tiny_models import save
from tracea_graph.check.worker_process import RejectedByRuntime, Worker
from tracea_graph.errors import WorkerError

RELU = "g (float[N,4] x) => (float[N,4] y) { h = Relu(x)  y = Add(h, h) }"
X = np.array([[-1, 2, -3, 4]], np.float32)
NEEDS_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


def bad_library(folder: Path, body: str) -> Path:
    """A custom-op library whose registration runs ``body``."""
    source, library = folder / "bad.cpp", folder / "bad.so"
    source.write_text(
        'extern "C" void abort();\n'
        'extern "C" void* RegisterCustomOps(void*, const void*) { ' + body + " return nullptr; }\n"
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_open_run_and_close(tmp_path):
    with Worker() as worker:
        info = worker.open("m", save(tmp_path, "m.onnx", RELU))
        assert [(p.name, p.type, p.shape) for p in info.inputs] == [
            ("x", "tensor(float)", ("N", 4))
        ]
        assert info.seconds > 0.0 and info.private_bytes >= 0
        assert worker.run("m", {"x": X})["y"].tolist() == [[0, 4, 0, 8]]
        worker.close("m")
        with pytest.raises(RejectedByRuntime):
            worker.run("m", {"x": X})


def test_sessions_prefer_providers_that_are_installed(tmp_path):
    path = save(tmp_path, "m.onnx", RELU)
    with Worker() as worker:
        found = worker.open("m", path, providers=("NoSuchExecutionProvider",)).providers
        assert found == ("CPUExecutionProvider",)
        for one in ort.get_available_providers()[:-1]:  # the last one is the CPU's
            assert worker.open("m", path, providers=(one,)).providers[0] == one
        assert worker.run("m", {"x": X})["y"].tolist() == [[0, 4, 0, 8]]


def test_private_bytes_see_a_large_weight(tmp_path):
    text = "g (float[2,2000] x) => (float[2,2000] y) { y = MatMul(x, w) }"
    path = save(tmp_path, "m.onnx", text, w=np.ones((2000, 2000), np.float32))
    with Worker() as worker:
        assert worker.open("m", path, weigh=True).private_bytes > 10e6


def test_extra_values_become_outputs(tmp_path):
    with Worker() as worker:
        worker.open("m", save(tmp_path, "m.onnx", RELU), level="off", extra=["h", "y"])
        found = worker.run("m", {"x": X})
    assert list(found) == ["y", "h"] and found["h"].tolist() == [[0, 2, 0, 4]]


def test_types_numpy_lacks_and_strings_travel(tmp_path):
    text = """g (bfloat16[2] b, float16[2] h) => (bfloat16[2] y, float16[2] z) {
        y = Identity(b)  z = Identity(h) }"""
    feeds = {"b": np.array([1.5, -2], ml_dtypes.bfloat16), "h": np.array([0.5, 3], np.float16)}
    words = "g (string[3] s) => (string[3] t) { t = Identity(s) }"
    with Worker() as worker:
        worker.open("m", save(tmp_path, "m.onnx", text))
        found = worker.run("m", feeds)
        worker.open("s", save(tmp_path, "s.onnx", words))
        strings = worker.run("s", {"s": np.array(["a", "", "ünï"], object)})
    assert found["y"].dtype == ml_dtypes.bfloat16 and found["y"].tolist() == [1.5, -2]
    assert found["z"].dtype == np.float16
    assert strings["t"].tolist() == ["a", "", "ünï"] and strings["t"].dtype == object


def test_sequences_are_flattened(tmp_path):
    text = """g (float[2] x, float[3] z) => (seq(float[N]) s) {
        s = SequenceConstruct(x, z) }"""
    feeds = {"x": np.ones(2, np.float32), "z": np.zeros(3, np.float32)}
    with Worker() as worker:
        worker.open("m", save(tmp_path, "m.onnx", text))
        assert {n: a.shape for n, a in worker.run("m", feeds).items()} == {
            "s[0]": (2,),
            "s[1]": (3,),
        }


def test_an_output_may_be_an_input(tmp_path):
    path = save(tmp_path, "m.onnx", "g (float[N] x) => (float[N] x, float[N] y) { y = Relu(x) }")
    x = np.arange(10_000, dtype=np.float32)
    with Worker() as worker:
        worker.open("m", path)
        for _ in range(20):  # its memory may be used again only when it has been read
            np.testing.assert_array_equal(worker.run("m", {"x": x})["x"], x)


def test_a_refusal_is_an_error_the_worker_survives(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x00nonsense")
    with Worker() as worker:
        with pytest.raises(RejectedByRuntime):
            worker.open("m", broken)
        worker.open("m", save(tmp_path, "m.onnx", RELU))
        with pytest.raises(RejectedByRuntime, match="missing"):
            worker.run("m", {})
        assert worker.run("m", {"x": X})["y"].shape == (1, 4)


def test_checker(tmp_path):
    with Worker() as worker:
        worker.check(save(tmp_path, "m.onnx", RELU))
        with pytest.raises(RejectedByRuntime, match=r"(?i)shape|dim"):
            wrong = "g (float[2,4] x) => (float[2,3] y) { y = Relu(x) }"
            worker.check(save(tmp_path, "w.onnx", wrong))


def test_race_pairs_and_stops_in_time(tmp_path):
    path = save(tmp_path, "m.onnx", RELU)
    with Worker() as worker:
        worker.open("a", path)
        worker.open("b", path, level="off")
        times = worker.compare("a", "b", {"x": X}, pairs=9)
        assert len(times.a_ms) == len(times.b_ms) == 9 and min(times.a_ms) > 0.0
        assert len(worker.compare("a", "b", {"x": X}, pairs=9, seconds=0.0).a_ms) == 1


def test_profile_names_nodes_and_runs_in_turn(tmp_path):
    with Worker() as worker:
        worker.open("a", save(tmp_path, "m.onnx", RELU), level="off")
        worker.open("b", save(tmp_path, "n.onnx", RELU.replace("Relu", "Neg")), level="off")
        one = worker.profile("a", {"x": X}, 5)
        assert sorted(n.op for n in one) == ["Add", "Relu"]
        assert all(len(n.samples) == 5 and n.us == np.median(n.samples) for n in one)
        _, other = worker.profile_pair("a", "b", {"x": X}, 3)
        assert sorted(n.op for n in other) == ["Add", "Neg"]


@NEEDS_COMPILER
def test_a_crash_in_a_library_names_the_request_and_ends_the_worker(tmp_path):
    library, path = bad_library(tmp_path, "abort();"), save(tmp_path, "m.onnx", RELU)
    with Worker() as worker:
        with pytest.raises(WorkerError, match=r"died \(SIGABRT\) when asked to open 'm'"):
            worker.open("m", path, library)
        with pytest.raises(WorkerError, match=r"so it cannot run 'm'"):
            worker.run("m", {"x": X})


@NEEDS_COMPILER
def test_a_library_that_hangs_is_killed_at_the_limit(tmp_path):
    library = bad_library(tmp_path, "for (volatile int i = 0;; i = i + 1) {}")
    path = save(tmp_path, "m.onnx", RELU)
    with Worker() as worker:
        worker.open("plain", path)  # it has started, and reads models
        with pytest.raises(WorkerError, match="more than 2 s to open 'm'"):
            worker.open("m", path, library, limit=2.0)
        assert worker._process.poll() is not None


def test_a_worker_that_others_keep_from_working_is_waited_for(tmp_path):
    with Worker() as worker:
        worker.open("m", save(tmp_path, "m.onnx", RELU))
        worker._process.send_signal(signal.SIGSTOP)
        later = threading.Timer(1.5, worker._process.send_signal, [signal.SIGCONT])
        later.start()
        assert worker.run("m", {"x": X}, limit=0.5)["y"].tolist() == [[0, 4, 0, 8]]
        later.join()


def test_stopping_leaves_no_process_and_no_files():
    worker = Worker()
    folder, process = Path(worker._folder.name), worker._process
    worker.stop()
    worker.stop()
    assert process.poll() is not None and not folder.exists()
    with pytest.raises(WorkerError, match="stopped"):
        worker.close("m")


def test_environment_reaches_the_worker():
    with Worker(env={"TRACEA_ISA": "scalar"}) as worker:
        file, end = Path(f"/proc/{worker._process.pid}/environ"), time.monotonic() + 100.0
        while not (environ := file.read_bytes()) and time.monotonic() < end:
            time.sleep(0.01)  # a process that is just starting has none yet
    assert b"TRACEA_ISA=scalar" in environ
