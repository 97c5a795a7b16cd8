"""What compiles CUDA C++ in a process of its own: ``nvrtc_main.py FOLDER`` or nothing.

NVRTC runs in the process that calls it; a crash of it shall take nobody along.  With a folder it
compiles the jobs of ``jobs.json`` there, ``[[number, target], …]``: ``<number>.cu`` becomes
``<number>.<target>``, a cubin for ``sm_…`` and PTX for ``compute_…``, and what the compiler said
``<number>.<target>.log``.  A job that fails leaves its log alone.  Without a folder it writes the
compiler's identity as JSON.  This file imports the standard library and cuda-python alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

OPTIONS = ("--std=c++17", "-default-device", "--fmad=false", "--ptxas-options=-v")
"""No product and sum becomes one fused operation unless a kernel says so: a result must not depend
on how the compiler arranged one tile shape."""


def identity(nvrtc: Any) -> dict[str, Any]:
    """Version and targets; raises RuntimeError if NVRTC does not answer."""
    version = checked(nvrtc, nvrtc.nvrtcVersion())
    (targets,) = checked(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    exact = [
        f"{name} {one.version}"
        for name in ("nvidia-cuda-nvrtc", "cuda-bindings")
        for one in importlib.metadata.distributions(name=name)
    ]
    return {"cuda": list(version), "capabilities": list(targets), "packages": exact}


def compile_one(nvrtc: Any, source: Path, target: str) -> tuple[bytes | None, str]:
    """The object, None if the text is wrong, and what the compiler said."""
    text = source.read_bytes()
    (program,) = checked(nvrtc, nvrtc.nvrtcCreateProgram(text, source.name.encode(), 0, [], []))
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
    result = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    log = taken(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return None, log or f"NVRTC answered {result.name}"
    kind = "CUBIN" if target.startswith("sm_") else "PTX"
    made = taken(nvrtc, program, kind)
    checked(nvrtc, nvrtc.nvrtcDestroyProgram(program))
    return (made if kind == "CUBIN" else made.rstrip(b"\0")), log


def taken(nvrtc: Any, program: Any, what: str) -> bytes:
    """A buffer of NVRTC's, by its size and then its content."""
    (size,) = checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer: bytes = b" " * size
    checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer


def checked(nvrtc: Any, answer: Any) -> Any:
    """The values of an answer.  Raises RuntimeError unless it succeeded."""
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC answered {answer[0].name}")
    return answer[1:]


def main(arguments: list[str]) -> int:
    """The exit code: 1 where NVRTC cannot be used, with the reason on stderr."""
    try:
        from cuda.bindings import nvrtc

        if not arguments:
            sys.stdout.write(json.dumps(identity(nvrtc)))
            return 0
        folder = Path(arguments[0])
        for number, target in json.loads((folder / "jobs.json").read_text()):
            made, log = compile_one(nvrtc, folder / f"{number}.cu", target)
            (folder / f"{number}.{target}.log").write_text(log)
            if made is not None:
                (folder / f"{number}.{target}").write_bytes(made)
    except (ImportError, RuntimeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
