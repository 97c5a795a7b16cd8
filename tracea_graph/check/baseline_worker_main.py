"""The worker process of benchmarks, which also runs models in other runtimes.

OpenVINO is imported only when a request asks for it.  A compiled model has the few methods of a
session that the base worker calls, so that it can be interleaved with sessions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tracea_graph.check import worker_main as base
else:
    sys.path.append(str(Path(__file__).parent))
    import worker_main as base


@dataclass(frozen=True)
class OpenVinoPort:
    """An input or output of a model that OpenVINO compiled."""

    name: str
    shape: tuple[int, ...]
    type: str = ""


class OpenVinoSession:
    """A model compiled by OpenVINO for fixed shapes, with the interface of a session."""

    def __init__(self, request: base.Request) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(request["model"])
        model.reshape({name: list(shape) for name, shape in request["shapes"].items()})
        settings = {
            "INFERENCE_PRECISION_HINT": request["precision"],
            "INFERENCE_NUM_THREADS": request["threads"],
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        compiled = core.compile_model(model, "CPU", settings)
        self.precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        self._infer = compiled.create_infer_request()
        self._inputs = [_end(port) for port in compiled.inputs]
        self._outputs = [_end(port) for port in compiled.outputs]
        self._fed: Mapping[str, base.Array] = {}
        self._tensor = openvino.Tensor

    def get_inputs(self) -> list[OpenVinoPort]:
        return self._inputs

    def get_outputs(self) -> list[OpenVinoPort]:
        return self._outputs

    def run(self, outputs: Sequence[str], feeds: Mapping[str, base.Array]) -> list[base.Array]:
        """Run one inference; results are views that the next call overwrites."""
        if feeds is not self._fed:
            for name, array in feeds.items():
                shared = self._tensor(np.ascontiguousarray(array), shared_memory=True)
                self._infer.set_tensor(name, shared)
            self._fed = feeds
        self._infer.infer()
        return [self._infer.get_output_tensor(i).data for i in range(len(outputs))]


def _end(port: Any) -> OpenVinoPort:
    return OpenVinoPort(min(port.get_names()), tuple(port.shape))


class BaselineServer(base.WorkerServer):
    """A worker server that also answers requests about models in other runtimes."""

    def open_baseline(self, request: base.Request) -> dict[str, Any]:
        """Compile a model with OpenVINO; answer with the precision that it actually runs in."""
        start = time.perf_counter()
        compiled = OpenVinoSession(request)
        names = tuple(request["outputs"])
        self.sessions[request["name"]] = base.OpenSession(compiled, request, names, plain=True)
        return {"precision": compiled.precision, "seconds": time.perf_counter() - start}

    def compare(self, request: base.Request) -> dict[str, Any]:
        """Time sessions; the answer also has the wall and CPU seconds of the measurement."""
        start, before = time.perf_counter(), time.process_time()
        found = super().compare(request)
        cpu, wall = time.process_time() - before, time.perf_counter() - start
        return {**found, "cpu": cpu, "wall": wall}


if __name__ == "__main__":
    base.main(sys.argv[1], BaselineServer)
