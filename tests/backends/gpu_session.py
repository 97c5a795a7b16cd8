"""Run a model in a separate process: ``gpu_session.py MODEL LIBRARY FEEDS.npz OUT.npz [JSON]``.

Arrays are named ``<run>/<input>`` in the feeds and ``<run>/<output>`` in the results.  The JSON
may set ``threads`` (each executes all runs), ``sessions`` (opened one after another), ``devices``
(sessions take turns with so many GPUs), ``fork`` (a forked process runs once more), ``fail``
(number of the launch that the driver double refuses) and ``pool`` (threads of a session).  Prints
JSON: the error, those of a second try with the session and with a new one, that of the forked
process, why no GPU is used, and the counters of the driver double.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import onnxruntime


def _error_of(call: Callable[[], Any]) -> str:
    """Return what a call raises, as text."""
    try:
        call()
    except Exception as error:  # ONNX Runtime's exception classes are not public
        return str(error)
    return ""


def _forked(call: Callable[[], Any]) -> str:
    """Return what a call raises in a forked process."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, _error_of(call).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def main(model: str, library: str, feeds: str, out: str, wishes: str = "{}") -> None:
    asked = json.loads(wishes)
    runs: dict[str, dict[str, Any]] = {}
    for key, array in np.load(feeds).items():
        run, name = key.split("/", 1)
        runs.setdefault(run, {})[name] = array
    settings = onnxruntime.SessionOptions()
    settings.register_custom_ops_library(library)
    settings.intra_op_num_threads = asked.get("pool", 0)
    if "fork" in asked:  # threads do not survive it
        settings.intra_op_num_threads = 1
    told: dict[str, Any] = {"error": "", "wrong": 0}
    kept: dict[str, Any] = {}
    opened: list[Any] = []

    def run_all(_: int = 0) -> dict[str, Any]:
        (session,) = opened
        names = [one.name for one in session.get_outputs()]
        return {
            f"{run}/{name}": value
            for run, feed in runs.items()
            for name, value in zip(names, session.run(None, feed), strict=True)
        }

    try:
        for number in range(asked.get("sessions", 1)):
            if "devices" in asked:
                os.environ["TRACEA_CUDA_DEVICE"] = str(number % asked["devices"])
            opened[:] = [onnxruntime.InferenceSession(model, settings)]
            if "fail" in asked:
                ctypes.CDLL("libcuda.so.1").double_fail(asked["fail"])
            with ThreadPoolExecutor(asked.get("threads", 1)) as pool:
                every = list(pool.map(run_all, range(asked.get("threads", 1))))
            kept = every[0]
            for other in every[1:]:
                told["wrong"] += sum(not np.array_equal(other[k], v) for k, v in kept.items())
        if "fork" in asked:
            told["forked"] = _forked(run_all)
    except Exception as error:  # ONNX Runtime's exception classes are not public
        told["error"] = str(error)
        told["again"] = _error_of(run_all)
        told["anew"] = _error_of(partial(onnxruntime.InferenceSession, model, settings))
    opened.clear()
    np.savez(out, **kept)
    refusal = ctypes.CDLL(library).tracea_gpu_refusal
    refusal.restype = ctypes.c_char_p
    told["refusal"] = (refusal() or b"").decode()
    del settings
    try:
        double = ctypes.CDLL("libcuda.so.1")
        told |= {
            name: getattr(double, f"double_{name}")()
            for name in ("launches", "replays", "live", "most_pinned")
        }
        told["launches_on"] = [double.double_launches_on(device) for device in range(8)]
    except (OSError, AttributeError):  # no driver, or a real one
        told["launches"] = 0
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
