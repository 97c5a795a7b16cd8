"""Load cubins, run kernels and time them on a GPU through the driver API."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.kernels.gpu.machine import Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES, Architecture
from tracea_graph.kernels.gpu.launch import Launch, TensorMap
from tracea_graph.kernels.gpu.nvrtc import Built

__all__ = ["Device", "Loaded", "checked"]


def checked(answer: Any) -> Any:
    """Return the value of a driver call.  Raises RuntimeError unless it succeeded."""
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {result.name}")
    return values[0] if len(values) == 1 else values


def encoded(m: TensorMap) -> bytes:
    """Return a tensor map as the driver encodes it."""
    kind = driver.CUtensorMapDataType
    types = {DType.U8: kind.CU_TENSOR_MAP_DATA_TYPE_UINT8,
             DType.I8: kind.CU_TENSOR_MAP_DATA_TYPE_UINT8,
             DType.F8E4M3FN: kind.CU_TENSOR_MAP_DATA_TYPE_UINT8,
             DType.F8E5M2: kind.CU_TENSOR_MAP_DATA_TYPE_UINT8,
             DType.F16: kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             DType.BF16: kind.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             DType.F32: kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT32}  # fmt: skip
    if m.rounded:
        types[DType.F32] = kind.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
    rank, whole = len(m.dims), [driver.cuuint64_t(n) for n in (*m.dims, *m.strides)]
    plain = (driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
             getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{m.line}B"),
             driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)  # fmt: skip
    tensor = types[m.dtype], driver.cuuint32_t(rank), m.address, whole[:rank], whole[rank:]
    box, steps = [driver.cuuint32_t(n) for n in m.box], [1] * rank
    if m.window is None:
        steps_of = [driver.cuuint32_t(n) for n in steps]
        made = checked(driver.cuTensorMapEncodeTiled(*tensor, box, steps_of, *plain))
    else:
        steps[1:-1] = m.window.steps
        steps_of = [driver.cuuint32_t(n) for n in steps]
        lower = [-int(n) for n in m.window.before]  # type: ignore[call-overload]
        upper = [int(n) for n in m.window.after]  # type: ignore[call-overload]
        made = checked(driver.cuTensorMapEncodeIm2col(
            *tensor, lower, upper, *m.box, steps_of, *plain))  # fmt: skip
    return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)


class Loaded:
    """A kernel loaded on the device."""

    def __init__(self, built: Built) -> None:
        self.built = built
        module = checked(driver.cuModuleLoadData(built.data))
        self.function = checked(driver.cuModuleGetFunction(module, built.source.symbol.encode()))
        if built.source.shared:  # as the library does
            kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            checked(driver.cuFuncSetAttribute(self.function, kind, 100))
        if built.source.shared > 48 << 10:
            kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(self.function, kind, built.source.shared))

    def attribute(self, name: str) -> int:
        kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(checked(driver.cuFuncGetAttribute(kind, self.function)))

    def blocks_of_an_sm(self) -> int:
        """Query the driver for the number of resident blocks per SM."""
        source = self.built.source
        return int(checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            self.function, source.threads, source.shared)))  # fmt: skip


class Device:
    """The first GPU, with its primary context.  Raises RuntimeError if there is no GPU."""

    def __init__(self) -> None:
        checked(driver.cuInit(0))
        self.handle = checked(driver.cuDeviceGet(0))
        self.context = checked(driver.cuDevicePrimaryCtxRetain(self.handle))
        checked(driver.cuCtxSetCurrent(self.context))
        kinds = driver.CUdevice_attribute
        major, minor = (
            checked(driver.cuDeviceGetAttribute(kind, self.handle))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.capability = 10 * major + minor

    @property
    def name(self) -> str:
        text: bytes = checked(driver.cuDeviceGetName(128, self.handle))
        return text.split(b"\0")[0].decode()

    @property
    def architecture(self) -> Architecture:
        """The newest architecture that this device supports."""
        fitting = [a for a in ARCHITECTURES.values() if a.capability <= self.capability]
        same = [a for a in fitting if a.capability == self.capability]
        return (same or fitting)[-1]

    def run(self, kernel: Loaded, launch: Launch, memory: Memory) -> None:
        """Launch a kernel on exact-size device copies of the buffers, and copy them back."""
        places = [self.put(buffer) for buffer in memory.buffers]
        try:
            self.launch(kernel, launch, places)
            checked(driver.cuCtxSynchronize())
            for buffer, place in zip(memory.buffers, places, strict=True):
                checked(driver.cuMemcpyDtoH(buffer.ctypes.data, place, buffer.nbytes))
        finally:
            self.free(places)

    def free(self, places: Sequence[Any]) -> None:
        for place in places:
            checked(driver.cuMemFree(place))

    def put(self, array: Any) -> Any:
        """Copy an array to device memory."""
        flat = np.ascontiguousarray(array)
        place = checked(driver.cuMemAlloc(max(flat.nbytes, 1)))
        if flat.nbytes:
            checked(driver.cuMemcpyHtoD(place, flat.ctypes.data, flat.nbytes))
        return place

    def launch(
        self, kernel: Loaded, launch: Launch, places: Sequence[Any], stream: Any = 0
    ) -> None:
        """Launch asynchronously; an empty grid is not launched."""
        grid = launch.blocks({})
        if 0 in grid:
            return
        made = launch.words({}, lambda buffer: int(places[buffer.index]), encoded)
        words = [ctypes.create_string_buffer(w, len(w)) for w in made]
        held = (ctypes.c_void_p * len(words))(*(ctypes.addressof(w) for w in words))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes, config.hStream = launch.shared, stream
        if self.capability >= 90:  # as programs of the library: a kernel waits itself
            early = driver.CUlaunchAttribute()
            kinds = driver.CUlaunchAttributeID
            early.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [early], 1
        checked(driver.cuLaunchKernelEx(config, kernel.function, ctypes.addressof(held), 0))

    def microseconds(
        self, kernel: Loaded, launch: Launch, sets: Sequence[Sequence[Any]], repeats: int = 20
    ) -> float:
        """Return the median time of a launch in µs, in CUDA graphs of 20 over ``sets`` in turn."""
        work = [lambda stream, p=p: self.launch(kernel, launch, p, stream) for p in sets]
        return self.replayed(work, repeats)

    def replayed(self, work: Sequence[Callable[[Any], object]], repeats: int = 20) -> float:
        """Return the median time in µs of what ``work`` puts on a stream, as ``microseconds``."""
        stream = checked(driver.cuStreamCreate(1))
        for one in work:
            one(stream)
        checked(driver.cuStreamSynchronize(stream))
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream, mode))
        for i in range(20):
            work[i % len(work)](stream)
        graph = checked(driver.cuStreamEndCapture(stream))
        replay = checked(driver.cuGraphInstantiate(graph, 0))
        begin, end = (checked(driver.cuEventCreate(0)) for _ in "be")
        times = []
        for _ in range(repeats):
            checked(driver.cuEventRecord(begin, stream))
            checked(driver.cuGraphLaunch(replay, stream))
            checked(driver.cuEventRecord(end, stream))
            checked(driver.cuEventSynchronize(end))
            times.append(1000 * float(checked(driver.cuEventElapsedTime(begin, end))) / 20)
        return median(times)
