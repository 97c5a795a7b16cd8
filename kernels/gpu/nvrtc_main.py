"""Compile CUDA C++ in a separate process: ``nvrtc_main.py [FOLDER]``.

NVRTC runs inside the process that calls it; a separate process contains its crashes.  With a
folder the script compiles the jobs of ``jobs.json`` there, ``[[number, target], …]``: it compiles
``<number>.cu`` to ``<number>.<target>``, a cubin for ``sm_…`` and PTX for ``compute_…``, and
writes the compiler's messages to ``<number>.<target>.log``.  A failed job leaves only its log.
Without a folder the script prints the compiler's identity as JSON.  This file imports only the
standard library and cuda-python.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

OPTIONS = ("--std=c++17", "-default-device", "--fmad=false", "--ptxas-options=-v")
"""Compiler options.  The compiler contracts no multiplications and additions, except where a
kernel asks for it: results must not depend on how the compiler schedules a tile shape.
"""


def nvrtc_identity(nvrtc: Any) -> dict[str, Any]:
    """Return NVRTC's version and targets.  Raises RuntimeError if NVRTC does not respond."""
    version = check_result(nvrtc, nvrtc.nvrtcVersion())
    (targets,) = check_result(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    exact = [
        f"{name} {one.version}"
        for name in ("nvidia-cuda-nvrtc", "cuda-bindings")
        for one in importlib.metadata.distributions(name=name)
    ]
    return {"cuda": list(version), "capabilities": list(targets), "packages": exact}


def compile_one(nvrtc: Any, source: Path, target: str) -> tuple[bytes | None, str]:
    """Return the object, or None if the source does not compile, and the compiler's log."""
    text = source.read_bytes()
    (program,) = check_result(
        nvrtc, nvrtc.nvrtcCreateProgram(text, source.name.encode(), 0, [], [])
    )
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
    result = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    log = fetch_buffer(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return None, log or f"NVRTC answered {result.name}"
    kind = "CUBIN" if target.startswith("sm_") else "PTX"
    made = fetch_buffer(nvrtc, program, kind)
    check_result(nvrtc, nvrtc.nvrtcDestroyProgram(program))
    return (made if kind == "CUBIN" else made.rstrip(b"\0")), log


def fetch_buffer(nvrtc: Any, program: Any, what: str) -> bytes:
    """Fetch a buffer from NVRTC: first its size, then its content."""
    (size,) = check_result(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer: bytes = b" " * size
    check_result(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer


def check_result(nvrtc: Any, answer: Any) -> Any:
    """Return the values of an NVRTC result.  Raises RuntimeError if the call failed."""
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC returned {answer[0].name}")
    return answer[1:]


def main(arguments: list[str]) -> int:
    """Run the script; the exit code is 1, with the reason on stderr, if NVRTC is unusable."""
    try:
        from cuda.bindings import nvrtc

        if not arguments:
            sys.stdout.write(json.dumps(nvrtc_identity(nvrtc)))
            return 0
        folder = Path(arguments[0])
        for number, target in json.loads((folder / "jobs.json").read_text(encoding="utf-8")):
            made, log = compile_one(nvrtc, folder / f"{number}.cu", target)
            (folder / f"{number}.{target}.log").write_text(log, encoding="utf-8")
            if made is not None:
                (folder / f"{number}.{target}").write_bytes(made)
    except (ImportError, RuntimeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
