"""Runs per second of results from many threads, without Python: tensors in host memory.

    python -m tests.gpu.native_load [NAME|MODEL.onnx=RESULT.onnx…] [--threads 1,2,4,8,12]
    python -m tests.gpu.native_load NAME --runs 10000 --threads 1 [--sizes 1x128,8x64,…]

Compiles ``native_load.cpp``, which runs one session of ONNX Runtime through its C interface, and
prints a line for each model and number of threads: runs per second, the median and the 99th
percentile of a run in µs, and how many of the results that were compared differ from the first.
Models of the zoo are optimized for this machine's GPU first; a RESULT was, with its library beside
it.

``--runs`` takes all feeds in turn, so often: those of ``--sizes``, batches and lengths, for models
whose inputs are ids.  Lines follow for each feed: its first three runs, and how far its slowest
runs are from the median.  They end with what slow runs met, and with how steady equal work of the
processor alone is, after the runs, and in a thread beside them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.gpu.endurance import NAMES, Finished, finished
from tracea_graph.config import Environment
from tracea_graph.ir import DType
from tracea_graph.toolchain import find_compiler

_SOURCE = Path(__file__).with_suffix(".cpp")
_HEADERS = Path(__file__).parents[1] / "deploy"
_TYPES = {
    np.dtype(np.float32): DType.F32, np.dtype(np.int64): DType.I64, np.dtype(np.int32): DType.I32,
}  # fmt: skip


def program(folder: Path) -> Path:
    """Compile the program against the library in ONNX Runtime's wheel; return its path."""
    capi = Path(onnxruntime.__file__).parent / "capi"
    library = next(iter(sorted(capi.glob("libonnxruntime.so*"))))
    (folder / "libonnxruntime.so.1").symlink_to(library)  # the name it is linked by
    made = folder / "native_load"
    find_compiler(Environment()).run(
        [
            "-O2", "-std=c++17", f"-I{_HEADERS}", str(_SOURCE), str(library), "-pthread",
            f"-Wl,-rpath,{folder}", "-o", str(made),
        ],
        folder,
    )  # fmt: skip
    return made


def written(feeds: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> bytes:
    """Return feeds as the program reads them."""

    def text(value: bytes) -> bytes:
        return len(value).to_bytes(8, "little") + value

    parts = [len(outputs).to_bytes(8, "little"), *(text(name.encode()) for name in outputs)]
    parts.append(len(feeds).to_bytes(8, "little"))
    for feed in feeds:
        parts.append(len(feed).to_bytes(8, "little"))
        for name, array in feed.items():
            dims = (_TYPES[array.dtype].onnx, array.ndim, *array.shape)
            parts += [text(name.encode()), *(size.to_bytes(8, "little") for size in dims)]
            parts.append(text(np.ascontiguousarray(array).tobytes()))
    return b"".join(parts)


def sized(session: Any, sizes: str) -> list[dict[str, Any]]:
    """Return feeds of ids and masks at batches and lengths, such as ``1x128,8x64``."""
    rng, feeds = np.random.default_rng(0), []
    for text in sizes.split(","):
        shape = tuple(map(int, text.split("x")))
        feed = {one.name: np.ones(shape, np.int64) for one in session.get_inputs()}
        feed["input_ids"] = rng.integers(0, 500, shape)
        feeds.append(feed)
    return feeds


def loaded(
    made: Finished, command: Path, feed: Path, threads: int, seconds: float, runs: int = 0
) -> str:
    """Run a result on feeds from many threads; return the program's lines in words."""
    arguments = [str(command), str(made.result), str(made.library), str(feed)]
    done = subprocess.run(
        [*arguments, str(seconds), str(threads), *([str(runs)] if runs else [])],
        capture_output=True, text=True, check=False, timeout=seconds + 300,
    )  # fmt: skip
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    line, *tails = done.stdout.splitlines()
    rate, half, most, differ, compared = line.split()
    first = (
        f"{threads} threads {rate} runs/s, {half} µs, 99 % below {most}, {differ} of {compared} "
        "differ"
    )
    return "\n  ".join((first, *_tails(tails)))


def _tails(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of ``--runs`` in words: they have four figures of a tail, behind others."""
    for *others, half, late, later, most in map(str.split, lines):
        tail = _tail((half, late, later, most))
        if len(others) == 3:
            one, two, three = others
            yield f"first runs {one}, {two}, {three} µs; {tail}"
        elif others:
            slow, preempted, waited, moved, faulted = others
            yield (
                f"{slow} runs took over 1.15 times the median: {preempted} were preempted, "
                f"{waited} waited, {moved} changed the processor, {faulted} touched new pages"
            )
            yield f"work without a GPU: {tail}"
        else:
            yield f"a thread beside: {tail}"


def _tail(figures: Sequence[str]) -> str:
    half, late, later, most = map(float, figures)
    return (
        f"{half:.1f} µs, 99 % below {late:.1f} ({late / half:.2f} times), 99.9 % below "
        f"{later:.1f}, all below {most:.1f}"
    )


def main() -> int:
    """Print a line for each model and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--threads", default="1,2,4,8,12")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--sizes", default="", help="such as 1x128,8x64")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        command = program(folder)
        for name in asked.names or NAMES:
            made = finished(name, asked.precision, folder)
            plain = onnxruntime.InferenceSession(str(made.original))
            outputs = [one.name for one in plain.get_outputs()]
            feed = folder / "feed"
            feeds = sized(plain, asked.sizes) if asked.sizes else made.feeds
            feed.write_bytes(written(feeds if asked.runs else feeds[:1], outputs))
            for threads in map(int, asked.threads.split(",")):
                line = loaded(made, command, feed, threads, asked.seconds, asked.runs)
                sys.stdout.write(f"{name} {line}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
