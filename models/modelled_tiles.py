"""Model register tiles on Arm's processors: ``python -m models.modelled_tiles``.

Each tile's inner loop, as zig compiles it, is counted and given to ``llvm-mca``, which models a
processor's dispatch, units and latencies with everything in L1.  A share is that of the cycles
which the loop's multiplications alone take in the same model, so 100 % is the peak *of the model*.
Nothing is measured.  Prints a table for RESULTS.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tracea_graph.kernels.cpu import emitter
from tracea_graph.kernels.cpu.variants import find_variant
from tracea_graph.toolchain.compilers import find_compiler
from tracea_graph.toolchain.platforms import PLATFORMS

__all__ = [
    "CORES",
    "OLDEST_LLVM",
    "TILES",
    "InnerLoop",
    "Tile",
    "inner_loop",
    "llvm_tool",
    "main",
    "major_version",
    "model_analyzer",
    "share",
]

CORES = (
    "neoverse-n1", "neoverse-v1", "neoverse-n2", "neoverse-v2", "cortex-a53", "cortex-a55",
    "cortex-a76", "apple-m1",
)  # fmt: skip
"""Processors as LLVM calls them."""
_EXTENSIONS = "-mattr=+dotprod,+i8mm,+bf16,+fullfp16"
_IN_ORDER_ROWS = 4
"""Rows of a product's tile on cores that run in order (runtime/isa.h)."""
OLDEST_LLVM = 19
"""The first tried whose models count these loops right.

LLVM 14 and 16 take moves between lanes for loads on Apple's M1, and 14 models Neoverse V1 as
Cortex-A57: 15 instead of 12 cycles for a turn of ``gemm_bf16``, whose vector units need 11.7.
"""
_ITERATIONS = 200
_SECONDS = 120.0
_LABEL = re.compile(r"(\.L\w+):")
_BRANCH = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z)\s.*?(\.L\w+)$")
_ON_VECTORS = re.compile(r"\bv\d+\.")
_VECTORS = {"ldp": 2, "ld1": 1, "ldr": 1, "ldur": 1, "ld1r": 1}


@dataclass(frozen=True)
class Tile:
    """The largest register tile of a kernel, and the instruction that it multiplies by.

    ``function`` is part of the tile's mangled name, where ``{rows}``, ``{first}`` and ``{second}``
    are its rows and the halves of them.  ``turns``: multiplications per sum in a turn of the loop.
    ``in_order``: the tile of cores that run in order, which is smaller.
    """

    kernel: str
    level: str
    multiply: str
    function: str
    turns: int = 4
    in_order: bool = False

    @property
    def rows(self) -> int:
        most = int(find_variant(self.kernel, self.level).tile.split("x")[0])
        return min(most, _IN_ORDER_ROWS) if self.in_order else most

    @property
    def blocks(self) -> bool:
        """Whether two rows by two columns are multiplied at once."""
        return self.multiply.endswith("mmla")

    @property
    def products(self) -> int:
        """Multiplications in a turn of the loop; a row of B is four vectors."""
        return self.turns * self.rows * 4

    @property
    def symbol(self) -> str:
        rows = self.rows
        return self.function.format(rows=rows, first=(rows + 1) // 2, second=rows // 2)


def _product(step: str) -> str:
    return f"4tileILi{{rows}}ELi1ELb0E.*{step}"


def _convolution(step: str) -> str:
    return f"4tileI.*{step}ELi{{first}}ELi{{second}}ELi1E"


TILES = (
    Tile("gemm", "neon", "fmla", _product("Plain")),
    Tile("gemm", "neon", "fmla", _product("Plain"), in_order=True),
    Tile("conv", "neon", "fmla", _convolution("Plain")),
    Tile("conv", "neon", "fmla", _convolution("Plain"), in_order=True),
    # two rows and two columns a vector, four steps of k each
    Tile("gemm_bf16", "neonbf16", "bfmmla", _product("Pairs"), turns=1),
    Tile("conv_bf16", "neonbf16", "bfmmla", _convolution("Pairs"), turns=1),
    Tile("gemm_bf16x2", "neonbf16", "bfmmla", "10tile_splitILi{rows}ELi1E", turns=3),
    # eight steps of k a turn, whose sums are in fp16
    Tile("gemm_f16", "neonfp16", "fmla", "8tile_f16ILi{rows}E"),
    Tile("conv_f16", "neonfp16", "fmla", _convolution("Halves")),
    Tile("gemm_int8", "neondot", "sdot", "9tile_int8ILi{rows}ELi1E"),
    # two rows and two columns a vector, eight steps of k each
    Tile("gemm_int8", "neoni8mm", "usmmla", "9tile_int8ILi{rows}ELi1E", turns=1),
)


@dataclass(frozen=True)
class InnerLoop:
    """The instructions of a loop, and the one that multiplies."""

    code: tuple[str, ...]
    multiply: str

    @property
    def blocks(self) -> bool:
        """Whether two rows by two columns are multiplied at once."""
        return self.multiply.endswith("mmla")

    @property
    def products(self) -> tuple[str, ...]:
        """The multiplications."""
        return tuple(line for line in self.code if line.startswith(self.multiply))

    @property
    def loads(self) -> int:
        """Vectors and parts of vectors that are loaded."""
        return sum(map(_loaded, self.code))

    @property
    def others(self) -> int:
        """Instructions that neither multiply nor load vectors."""
        return sum(not _loaded(line) for line in self.code) - len(self.products)

    @property
    def bound(self) -> float:
        """The multiplications' largest share of cycles where every vector unit does everything.

        Zips of B and joined rows of A take turns of the units that multiply; loads do not.
        """
        vectors = sum(bool(_ON_VECTORS.search(line)) and not _loaded(line) for line in self.code)
        return len(self.products) / vectors

    @property
    def ahead(self) -> int:
        """The fewest multiplications between a vector's load and its use, over two turns."""
        code, least = (*self.code, *self.code), len(self.products)
        for i in range(len(self.code)):
            load = re.match(r"ldr\tq(\d+)", code[i])
            if load is None:
                continue
            uses = re.compile(rf"\bv{load[1]}\.")
            between = 0
            for line in code[i + 1 :]:
                if line.startswith(self.multiply):
                    if uses.search(line):
                        break
                    between += 1
            least = min(least, between)
        return least

    @property
    def spills(self) -> tuple[str, ...]:
        """Accesses to the stack, and copies of whole vector registers."""
        return tuple(line for line in self.code if re.search(r"\[sp|^mov\s+v\d+\.16b", line))


def _loaded(line: str) -> int:
    """Vectors that an instruction loads."""
    name, _, operands = line.partition("\t")
    return _VECTORS.get(name, 0) if operands.strip()[:1] in ("{", "q", "s", "d") else 0


def inner_loop(tile: Tile) -> InnerLoop:
    """The shortest innermost loop of a tile that holds all its multiplications.

    That for cores in order is the longer of two: its vectors are loaded one by one.

    Raises BuildError without zig, ValueError if there is no such loop.
    """
    found = [
        loop
        for name, lines in _functions(tile.kernel, tile.level)
        if re.search(tile.symbol, name)
        for code in _loops(lines)
        for loop in (InnerLoop(code, tile.multiply),)
        if len(loop.products) >= tile.products
    ]
    if not found:
        raise ValueError(
            f"{tile.kernel} at {tile.level} has no loop of {tile.products} {tile.multiply}"
        )
    return (max if tile.in_order else min)(found, key=lambda loop: len(loop.code))


@cache
def _functions(kernel: str, level: str) -> list[tuple[str, list[str]]]:
    """Mangled name and assembly of every function of a kernel's unit."""
    unit = emitter.emit_unit(kernel, level)
    headers = Path(emitter.__file__).resolve().parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "unit.cpp").write_text(unit.text)
        args = (*unit.flags, f"-I{headers}", "-S", "unit.cpp", "-o", "unit.s")
        find_compiler(platform=PLATFORMS["linux-aarch64"]).run(args, folder)
        text = (folder / "unit.s").read_text()
    found = re.findall(r"^(\w+):.*\n((?s:.*?))^\.Lfunc_end", text, re.MULTILINE)
    return [(name, [line.split("//")[0].strip() for line in body.split("\n")])
            for name, body in found]  # fmt: skip


def _loops(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The loops of a function that hold no other loop."""
    code = [line for line in lines if line and (_LABEL.match(line) or not line.startswith("."))]
    where = {label[1]: i for i, line in enumerate(code) if (label := _LABEL.match(line))}
    ends = [
        (begin, i)
        for i, line in enumerate(code)
        if (branch := _BRANCH.match(line)) and (begin := where.get(branch[1], i)) < i
    ]
    for begin, end in ends:
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in ends):
            yield tuple(line for line in code[begin : end + 1] if not _LABEL.match(line))


def llvm_tool(name: str) -> str | None:
    """The newest tool of LLVM of a name that is installed, or None."""
    names = (name, *(f"{name}-{version}" for version in range(16, 40)))
    return next((path for each in reversed(names) if (path := shutil.which(each))), None)


def model_analyzer() -> str | None:
    """The newest ``llvm-mca`` that is installed, or None if it is older than `OLDEST_LLVM`."""
    tool = llvm_tool("llvm-mca")
    return tool if tool is not None and major_version(tool) >= OLDEST_LLVM else None


@cache
def major_version(tool: str) -> int:
    """The LLVM release that a tool belongs to; 0 if it does not say."""
    done = subprocess.run(
        (tool, "--version"), capture_output=True, text=True, check=True, timeout=_SECONDS
    )
    found = re.search(r"LLVM version (\d+)", done.stdout)
    return int(found[1]) if found else 0


def share(loop: InnerLoop, core: str, analyzer: str) -> float:
    """The multiplications' share of the loop's cycles on a processor, in the model."""
    return _cycles(loop.products, core, analyzer) / _cycles(loop.code, core, analyzer)


def _cycles(code: Sequence[str], core: str, analyzer: str) -> int:
    """Cycles of many turns through code; branches in it are not taken."""
    lines = []
    for i, line in enumerate(code):
        branch = _BRANCH.match(line)
        lines.append(line.replace(branch[1], f".L{i}") + f"\n.L{i}:" if branch else line)
    command = (analyzer, "-mtriple=aarch64", f"-mcpu={core}", _EXTENSIONS,
               f"-iterations={_ITERATIONS}")  # fmt: skip
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True,
        timeout=_SECONDS,
    )  # fmt: skip
    found = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per tile: what its loop holds, and its share on every processor."""
    parser = argparse.ArgumentParser(prog="python -m models.modelled_tiles", description=__doc__)
    parser.add_argument("--mca", default=model_analyzer(), help="the llvm-mca to use")
    parser.add_argument("--cores", default=",".join(CORES), help="processors, comma-separated")
    args = parser.parse_args(argv)
    if args.mca is None:
        parser.error(f"llvm-mca is missing: install LLVM {OLDEST_LLVM} or later")
    cores = args.cores.split(",")
    heads = ("kernel", "level", "tile", "multiplies", "loads", "others", "spilled")
    print("| " + " | ".join((*heads, *cores)) + " |")
    print("|" + "---|" * (len(heads) + len(cores)))
    for tile in TILES:
        loop = inner_loop(tile)
        products, spills = len(loop.products), len(loop.spills)
        shares = (f"{share(loop, core, args.mca):.0%}".replace("%", " %") for core in cores)
        shown = (
            f"`{tile.kernel}`" + (", in order" if tile.in_order else ""), f"`{tile.level}`",
            f"{tile.rows}×16",
            f"{products} `{tile.multiply}`",
            f"{loop.loads}", f"{loop.others}", f"{spills}",
        )  # fmt: skip
        print("| " + " | ".join((*shown, *shares)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
