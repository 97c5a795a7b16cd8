"""The inner loop of a generated kernel, as machine code."""

from __future__ import annotations

import re
import subprocess
from functools import cache

from tests.kernels.conformance import compile_unit
from tracea_graph.kernels.cpu.emitter import emit_unit

__all__ = ["count", "inner_loop", "instructions", "loops", "spills"]


def inner_loop(
    kernel: str, isa: str, function: str, multiply_adds: int, instruction: str = "vfmadd"
) -> list[str]:
    """The instructions of the shortest loop of a function that holds so many multiply-adds.

    ``function`` is matched against demangled names.
    """
    found = (loop for loop in loops(kernel, isa, function)
             if count(instruction, loop) >= multiply_adds)  # fmt: skip
    return min(found, key=len)


def loops(kernel: str, isa: str, function: str) -> list[list[str]]:
    """The instructions of every loop of a function, those within it included."""
    rows = instructions(kernel, isa, function)
    where = {int(address, 16): i for i, (address, _) in enumerate(rows)}
    found = []
    for i, (_, code) in enumerate(rows):
        target = re.match(r"j\w+\s+([0-9a-f]+)", code)
        begin = where.get(int(target.group(1), 16), i) if target else i
        if begin < i:
            found.append([code for _, code in rows[begin : i + 1]])
    return found


def instructions(kernel: str, isa: str, function: str) -> list[list[str]]:
    """Address and text of every instruction of a function."""
    body = next(body for name, body in disassembled(kernel, isa) if re.search(function, name))
    return [line.split(":\t") for line in body.splitlines() if ":\t" in line]


@cache
def disassembled(kernel: str, isa: str) -> list[tuple[str, str]]:
    """Demangled name and code of every function of a kernel's unit."""
    library = compile_unit(emit_unit(kernel, isa))
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^[0-9a-f]+ <(.*)>:\n((?:.+\n)*)", text, re.MULTILINE)


def count(pattern: str, code: list[str]) -> int:
    """How many instructions begin with the pattern."""
    return sum(bool(re.match(pattern, line)) for line in code)


def spills(code: list[str]) -> list[str]:
    """Vector instructions that touch the stack."""
    return [line for line in code if re.search(r"[yz]mm", line) and re.search("%r[sb]p", line)]
