"""Run a model in a separate process: ``gpu_session.py MODEL LIBRARY FEEDS.npz OUT.npz [JSON]``.

Arrays are named ``<run>/<input>`` in the feeds and ``<run>/<output>`` in the results.  The JSON
may set ``threads`` (each executes all runs), ``sessions`` (created and released one after another)
and ``fail`` (number of the launch that the driver double refuses).  Prints JSON: the error, why no
GPU is used, and the counters of the driver double.
"""

from __future__ import annotations

import ctypes
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime


def main(model: str, library: str, feeds: str, out: str, wishes: str = "{}") -> None:
    asked = json.loads(wishes)
    runs: dict[str, dict[str, Any]] = {}
    for key, array in np.load(feeds).items():
        run, name = key.split("/", 1)
        runs.setdefault(run, {})[name] = array
    settings = onnxruntime.SessionOptions()
    settings.register_custom_ops_library(library)
    told: dict[str, Any] = {"error": "", "wrong": 0}
    kept: dict[str, Any] = {}
    try:
        for _ in range(asked.get("sessions", 1)):
            session = onnxruntime.InferenceSession(model, settings)
            if "fail" in asked:
                ctypes.CDLL("libcuda.so.1").double_fail(asked["fail"])
            names = [one.name for one in session.get_outputs()]

            def each(_: int, session: Any = session, names: Any = names) -> dict[str, Any]:
                return {
                    f"{run}/{name}": value
                    for run, feed in runs.items()
                    for name, value in zip(names, session.run(None, feed), strict=True)
                }

            with ThreadPoolExecutor(asked.get("threads", 1)) as pool:
                every = list(pool.map(each, range(asked.get("threads", 1))))
            kept = every[0]
            for other in every[1:]:
                told["wrong"] += sum(not np.array_equal(other[k], v) for k, v in kept.items())
            del session, each
    except Exception as error:  # ONNX Runtime's exception classes are not public
        told["error"] = str(error)
    np.savez(out, **kept)
    refusal = ctypes.CDLL(library).tracea_gpu_refusal
    refusal.restype = ctypes.c_char_p
    told["refusal"] = (refusal() or b"").decode()
    del settings
    try:
        double = ctypes.CDLL("libcuda.so.1")
        told |= {
            name: getattr(double, f"double_{name}")() for name in ("launches", "replays", "live")
        }
    except (OSError, AttributeError):  # no driver, or a real one
        told["launches"] = 0
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
