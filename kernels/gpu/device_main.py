"""Run kernels on the first GPU in a separate process, so that a driver crash stays there.

``device_main.py FOLDER`` runs probes.  ``jobs.json`` in the folder lists them: kind, symbol, file
of the cubin, work of a block in a round, threads, blocks per SM and shared memory.  The script
prints JSON: ``rates`` (1e9 per second, by symbol), ``figures`` (name, value, unit), ``ghz``, and
``notes`` about the probes that failed.

``device_main.py`` without a folder times kernels.  Each line of its input is a JSON request, each
line of its output the answer; see :func:`compare_kernels`.  This file imports only the standard
library and cuda-python.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

_REPEATS = 5
_SECONDS = 2e-3
"""Duration of one measurement of a rate."""
_STEPS = 100
"""Number of kernels in a graph; the time of the graph is divided by it."""
_LINE = 256
"""Alignment of buffers."""
_HALVES = (0x2800, 0xA800)
"""Upper bits of fp16 numbers from 1/32 to 1/16; as bf16 and fp32 they are small too."""
_SMALL, _LARGE = 16 << 10, 32 << 20
"""Bytes of a copy that is bound by latency, and of one that is bound by bus bandwidth."""


class DeviceDriver:
    """The first GPU that CUDA lists.  Raises RuntimeError if the driver fails."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.do("cuInit", 0)
        device = self.do("cuDeviceGet", 0)
        self.do("cuCtxSetCurrent", self.do("cuDevicePrimaryCtxRetain", device))
        self.sms, self.l2, major = (
            int(self.do("cuDeviceGetAttribute", getattr(driver.CUdevice_attribute, name), device))
            for name in ("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
                         "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE",
                         "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR")
        )  # fmt: skip
        self.early = major >= 9
        self.free = int(self.do("cuMemGetInfo")[0])
        self.stream = self.do("cuStreamCreate", 1)
        self.out = self.do("cuMemAlloc", 1 << 20)
        self.loaded = dict[str, Any]()

    def do(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver.  Raises RuntimeError unless it succeeds."""
        result, *values = getattr(self.driver, name)(*arguments)
        if result != self.driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name} returned {result.name}")
        return values[0] if len(values) == 1 else values

    def launch(self, job: dict[str, Any], blocks: int, words: Sequence[Any], early: bool) -> None:
        """Launch a kernel; ``early`` lets it start before the previous kernel has ended."""
        held = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = job["threads"], 1, 1
        config.sharedMemBytes, config.hStream = job["shared"], self.stream
        if early:
            one = self.driver.CUlaunchAttribute()
            kinds = self.driver.CUlaunchAttributeID
            one.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            one.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [one], 1
        self.do("cuLaunchKernelEx", config, job["function"], ctypes.addressof(held), 0)

    def timed(self, work: Callable[[], object]) -> float:
        """Return the seconds, by CUDA events, of the work that ``work()`` puts on the stream."""
        begin, end = (self.do("cuEventCreate", 0) for _ in "be")
        self.do("cuEventRecord", begin, self.stream)
        work()
        self.do("cuEventRecord", end, self.stream)
        self.do("cuEventSynchronize", end)
        return float(self.do("cuEventElapsedTime", begin, end)) * 1e-3

    def graph(self, work: Callable[[], object]) -> Any:
        """Capture the work that ``work()`` puts on the stream as a CUDA graph."""
        mode = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.do("cuStreamBeginCapture", self.stream, mode)
        work()
        return self.do("cuGraphInstantiate", self.do("cuStreamEndCapture", self.stream), 0)

    def replay(self, graph: Any) -> None:
        """Launch a graph."""
        self.do("cuGraphLaunch", graph, self.stream)

    def waited(self, graph: Any) -> float:
        """Return the wall-clock seconds of launching a graph and waiting for its end."""
        start = time.perf_counter()
        self.replay(graph)
        self.do("cuStreamSynchronize", self.stream)
        return time.perf_counter() - start


def measure_rate(
    gpu: DeviceDriver, job: dict[str, Any], words: Sequence[Any], work: float
) -> float:
    """Return the rate of a probe in 1e9 units of work per second.

    ``work`` is the number of units that all blocks of the grid do in one round.
    """
    blocks = gpu.sms * job["blocks"]

    def run(rounds: int) -> float:
        given = (ctypes.c_uint64(int(gpu.out)), ctypes.c_int(rounds), *words)
        return gpu.timed(lambda: gpu.launch(job, blocks, given, early=False))

    run(1)
    rounds, seconds = 1, run(1)
    while seconds < _SECONDS and rounds < 1 << 24:
        rounds *= max(2, min(64, int(_SECONDS / max(seconds, 1e-6))))
        seconds = run(rounds)
    return rounds * work / median(run(rounds) for _ in range(_REPEATS)) * 1e-9


def measure_bandwidth(gpu: DeviceDriver, job: dict[str, Any], size: int) -> float:
    """Return the bandwidth in GB/s at which a kernel reads the same ``size`` bytes repeatedly."""
    count = size // 16
    place = gpu.do("cuMemAlloc", size)
    gpu.do("cuMemsetD32", place, 0x3C003C00, size // 4)
    try:
        words = ctypes.c_uint64(int(place)), ctypes.c_int64(count)
        return measure_rate(gpu, job, words, count * 16)
    finally:
        gpu.do("cuMemFree", place)


def measure_clock(gpu: DeviceDriver) -> float:
    """Return the GPU's clock in GHz during the last probe of an instruction rate."""
    held = (ctypes.c_uint64 * 2)()
    gpu.do("cuMemcpyDtoH", ctypes.addressof(held), gpu.out, 16)
    return held[0] / held[1] if held[1] else 0.0


def measure_launch_costs(gpu: DeviceDriver, job: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Measure the costs of launches, of a graph's launch and completion, and of copies.

    Returns the name, value and unit of each figure.
    """
    half = 512 << 10
    addresses = [ctypes.c_uint64(int(gpu.out)), ctypes.c_uint64(int(gpu.out) + half)]

    def chain(count: int, early: bool) -> None:
        for i in range(count):
            gpu.launch(job, gpu.sms, (addresses[i % 2], addresses[1 - i % 2]), early)

    found = []
    for early in (False, True)[: 1 + gpu.early]:
        graph = gpu.graph(partial(chain, _STEPS, early))
        gpu.replay(graph)
        us = 1e6 * median(gpu.timed(partial(gpu.replay, graph)) for _ in range(20)) / _STEPS
        found.append(("kernel after kernel in a graph" + ", started early" * early, us, "µs"))
    start = time.perf_counter()
    chain(_STEPS, early=False)
    launched = time.perf_counter() - start
    gpu.do("cuStreamSynchronize", gpu.stream)
    found.append(("launch by the host", 1e6 * launched / _STEPS, "µs"))
    host = gpu.do("cuMemHostAlloc", 2 * _LARGE, 0)
    device = gpu.do("cuMemAlloc", _LARGE)

    def whole() -> None:
        gpu.do("cuMemcpyHtoDAsync", gpu.out, host, _SMALL, gpu.stream)
        chain(1, early=False)
        gpu.do("cuMemcpyDtoHAsync", int(host) + _LARGE, gpu.out, _SMALL, gpu.stream)

    for name, work in (("graph of one kernel, waited for", partial(chain, 1, False)),
                       ("graph of a kernel and copies both ways, waited for", whole)):  # fmt: skip
        graph = gpu.graph(work)
        gpu.waited(graph)
        found.append((name, 1e6 * median(gpu.waited(graph) for _ in range(50)), "µs"))
    copies = (
        ("copy to the device", "cuMemcpyHtoDAsync", (device, host)),
        ("copy from the device", "cuMemcpyDtoHAsync", (host, device)),
    )
    for name, function, ends in copies:
        seconds = median(
            gpu.timed(partial(gpu.do, function, *ends, _LARGE, gpu.stream))
            for _ in range(_REPEATS)
        )
        found.append((name, _LARGE / seconds * 1e-9, "GB/s"))
    return found


def run_all_probes(gpu: DeviceDriver, folder: Path) -> dict[str, Any]:
    """Run all probes of a folder."""
    rates, notes, ghz = dict[str, float](), list[str](), 0.0
    figures: list[Any] = [("multiprocessors", gpu.sms, "")]
    for job in json.loads((folder / "jobs.json").read_text(encoding="utf-8")):
        symbol = job["symbol"]
        try:
            module = gpu.do("cuModuleLoadData", (folder / job["file"]).read_bytes())
            job["function"] = gpu.do("cuModuleGetFunction", module, symbol.encode())
            if job["kind"] == "step":
                figures += measure_launch_costs(gpu, job)
            elif job["kind"] == "read" and not job["work"]:
                for name, size in (("l2", gpu.l2 // 4), ("dram", max(8 * gpu.l2, 256 << 20))):
                    if 0 < size < gpu.free // 4:
                        rates[name] = measure_bandwidth(gpu, job, size)
            else:
                rates[symbol] = measure_rate(gpu, job, (), gpu.sms * job["blocks"] * job["work"])
                ghz = measure_clock(gpu) if job["kind"] == "multiply" and not ghz else ghz
        except RuntimeError as error:
            notes.append(f"{symbol} was not measured: {error}")
    return {"rates": rates, "figures": figures, "ghz": ghz, "notes": notes}


# ---- comparing kernels ----------------------------------------------------------------------


class Comparison:
    """Two kernels for the same call, each in a CUDA graph; the graphs are replayed alternately."""

    def __init__(self, gpu: DeviceDriver, request: dict[str, Any]) -> None:
        self.gpu = gpu
        self.arena, addresses = self._placed(request["buffers"], request["copies"])
        self.count = max(request["launches"], len(addresses))
        self.graphs = []
        try:
            for kernel in request["kernels"]:
                job = self._loaded(kernel)
                words = [[self._word(a, own) for a in kernel["arguments"]] for own in addresses]
                gpu.launch(job, kernel["grid"], words[0], early=gpu.early)
                gpu.do("cuStreamSynchronize", gpu.stream)
                self.graphs.append(gpu.graph(partial(self._chain, job, kernel["grid"], words)))
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        """Free the buffers."""
        self.gpu.do("cuMemFree", self.arena)

    def _chain(self, job: dict[str, Any], grid: int, words: Sequence[Sequence[Any]]) -> None:
        for i in range(self.count):
            self.gpu.launch(job, grid, words[i % len(words)], early=self.gpu.early)

    def _loaded(self, kernel: dict[str, Any]) -> dict[str, Any]:
        gpu = self.gpu
        if kernel["file"] not in gpu.loaded:
            module = gpu.do("cuModuleLoadData", Path(kernel["file"]).read_bytes())
            function = gpu.do("cuModuleGetFunction", module, kernel["symbol"].encode())
            gpu.loaded[kernel["file"]] = function
        function = gpu.loaded[kernel["file"]]
        attribute = gpu.driver.CUfunction_attribute  # a kernel may take more at other sizes
        gpu.do("cuFuncSetAttribute", function,
               attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
               kernel["shared"])  # fmt: skip
        return {**kernel, "function": function}

    def _placed(self, sizes: Sequence[int], copies: int) -> tuple[Any, list[list[int]]]:
        """Allocate copies of the buffers and fill them with numbers."""
        steps = [-(-size // _LINE) * _LINE for size in sizes]
        whole = sum(steps)
        arena = self.gpu.do("cuMemAlloc", whole * copies)
        drawn = random.Random(0)
        block = array("H", (drawn.choice(_HALVES) | drawn.getrandbits(9) for _ in range(1 << 16)))
        tile = block.tobytes()
        for at in range(0, whole, len(tile)):
            size = min(len(tile), whole - at)
            self.gpu.do("cuMemcpyHtoD", int(arena) + at, tile[:size], size)
        for i in range(1, copies):
            self.gpu.do("cuMemcpyDtoD", int(arena) + i * whole, arena, whole)
        offsets = [sum(steps[:i]) for i in range(len(steps))]
        return arena, [[int(arena) + i * whole + o for o in offsets] for i in range(copies)]

    def _word(self, argument: dict[str, Any], addresses: Sequence[int]) -> Any:
        """Return a kernel's parameter for one copy of the buffers."""
        if "bytes" in argument:
            raw = bytes.fromhex(argument["bytes"])
            return (ctypes.c_char * len(raw)).from_buffer_copy(raw)
        at = addresses[argument["buffer"]] + argument["offset"]
        if "map" not in argument:
            return ctypes.c_uint64(at)
        raw = self._encoded(argument["map"], at)
        return (ctypes.c_char * len(raw)).from_buffer_copy(raw)

    def _encoded(self, described: dict[str, Any], at: int) -> bytes:
        """Return a tensor map with swizzled rows of 128 or 64 bytes, as the runtime encodes it."""
        d = self.gpu.driver
        kind = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{described['type']}")
        dims, strides = ([d.cuuint64_t(n) for n in described[key]] for key in ("dims", "strides"))
        rank, tensor = len(dims), (kind, d.cuuint32_t(len(dims)), at, dims, strides)
        plain = (
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{described['line']}B"),
            d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        steps = [1, *described.get("steps", ()), *[1] * rank][:rank]
        steps_of = [d.cuuint32_t(n) for n in steps]
        if "steps" in described:  # pixels of a window
            lower, upper = [-n for n in described["before"]], list(described["after"])
            made = self.gpu.do(
                "cuTensorMapEncodeIm2col", *tensor, lower, upper, *described["box"], steps_of,
                *plain,
            )  # fmt: skip
        else:
            box = [d.cuuint32_t(n) for n in described["box"]]
            made = self.gpu.do("cuTensorMapEncodeTiled", *tensor, box, steps_of, *plain)
        return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)

    def times(self, pairs: int, seconds: float) -> tuple[list[float], list[float]]:
        """Replay each graph once per pair; return milliseconds per launch of each kernel."""
        found: tuple[list[float], list[float]] = [], []
        end = time.perf_counter() + seconds
        for i in range(pairs):
            if i and time.perf_counter() > end:
                break
            for k in (0, 1) if i % 2 == 0 else (1, 0):
                taken = self.gpu.timed(partial(self.gpu.replay, self.graphs[k]))
                found[k].append(1e3 * taken / self.count)
        return found


def compare_kernels(gpu: DeviceDriver, request: dict[str, Any]) -> dict[str, Any]:
    """Time two kernels alternately; return milliseconds per launch, ``a`` and ``b``, or ``error``.

    The keys of a request are:

    * ``kernels``: two kernels, each with file, symbol, grid, threads, shared and arguments
    * ``buffers``: sizes of the kernels' buffers in bytes
    * ``copies``: number of copies of the buffers; successive launches use successive copies, so
      that data are cold if all copies together exceed the cache
    * ``launches``: minimum number of launches in a graph
    * ``pairs``, ``seconds``: maximum number of pairs of graph launches, and of seconds
    """
    try:
        both = Comparison(gpu, request)
        try:
            for graph in both.graphs:
                gpu.replay(graph)
            a, b = both.times(request["pairs"], request["seconds"])
        finally:
            both.close()
    except RuntimeError as error:
        return {"error": str(error)}
    return {"a": a, "b": b}


def main(arguments: list[str]) -> int:
    """Run the script; the exit code is 1, with the reason on stderr, if there is no GPU."""
    try:
        from cuda.bindings import driver

        gpu = DeviceDriver(driver)
        if arguments:
            sys.stdout.write(json.dumps(run_all_probes(gpu, Path(arguments[0]))))
            return 0
        for line in sys.stdin:
            sys.stdout.write(f"{json.dumps(compare_kernels(gpu, json.loads(line)))}\n")
            sys.stdout.flush()
    except (ImportError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
