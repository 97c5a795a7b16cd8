"""Count what telemetry costs: ``python -m models.telemetry_overhead``.

A C program makes calls of a stand-alone library under callgrind, with ``TRACEA_PROFILE`` and
without; instructions of one call are the difference between two numbers of calls.  Other processes
do not change the counts.  Kernels are those for AVX2, since callgrind knows no AVX-512.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from tracea_graph.commands.build_kernel_library import build_kernels
from tracea_graph.toolchain import find_compiler

__all__ = ["main"]

_HOST = r"""
#include <stdlib.h>
#include <tracea.h>

int main(int argc, char** argv) {
  const int calls = atoi(argv[1]), m = atoi(argv[2]), n = atoi(argv[3]), k = atoi(argv[4]);
  float *a = calloc((size_t)(m * k), 4), *b = calloc((size_t)(k * n), 4);
  float* c = calloc((size_t)(m * n), 4);
  TraceaTensorView x = tracea_matrix(a, m, k), w = tracea_matrix(b, k, n);
  TraceaTensorView y = tracea_matrix(c, m, n);
  TraceaPrepared* prepared;
  int i;
  tracea_set_threads(1);
  if (argc != 5 || tracea_prepare_gemm(&w, NULL, NULL, &prepared)) return 1;
  for (i = 0; i < calls; ++i)
    if (tracea_run_prepared(prepared, &x, &y, NULL)) return 2;
  return 0;
}
"""
_SIZES = ((1, 384, 384), (8, 384, 384), (32, 384, 384), (128, 384, 384))
_FEW, _MANY = 4, 12
"""Calls of the two runs: what a run does once counts in both."""


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build_kernels(("gemm",), folder, levels=("avx2",)).path
        (folder / "host.c").write_text(_HOST)
        own = ("-O1", "-x", "c", "host.c", "-o", "host", "-x", "none", "-Iinclude", str(library))
        find_compiler().run((*own, f"-Wl,-rpath,{library.parent}"), folder)
        print("| M×N×K | instructions of a call | with TRACEA_PROFILE | more |\n|" + " --- |" * 4)
        for size in _SIZES:
            off, on = (_of_a_call(folder, size, traced) for traced in (False, True))
            more = f"{on - off} ({(on - off) / off:.3%})"
            print(f"| {'×'.join(map(str, size))} | {off} | {on} | {more} |", flush=True)


def _of_a_call(folder: Path, size: tuple[int, ...], traced: bool) -> int:
    few, many = (_counted(folder, calls, size, traced) for calls in (_FEW, _MANY))
    return (many - few) // (_MANY - _FEW)


def _counted(folder: Path, calls: int, size: tuple[int, ...], traced: bool) -> int:
    """Return the instructions of a program that makes so many calls."""
    trace = {"TRACEA_PROFILE": str(folder / "trace")} if traced else {}
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "./host"]
    done = subprocess.run(
        [*command, str(calls), *map(str, size)], cwd=folder, capture_output=True, text=True,
        check=True, env={**os.environ, **trace},
    )  # fmt: skip
    (found,) = re.findall(r"Collected : (\d+)", done.stderr)
    return int(found)


if __name__ == "__main__":
    main()
