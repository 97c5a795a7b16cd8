"""Digests of constants tell byte strings apart, however threads share the work."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tracea_graph.kernels import gpu
from tracea_graph.toolchain.compilers import find_compiler

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("digest.cpp")
HEADERS = Path(str(gpu.__file__)).parent
PART = 4 << 20
"""Bytes that one thread takes at a time."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digest")
    flags = ("-std=c++17", "-O2", "-pthread", f"-I{HEADERS}", str(SOURCE), "-o", "digest")
    find_compiler().run(flags, folder)
    return folder / "digest"


def digests(program: Path, strings: Sequence[bytes]) -> list[str]:
    given = b"".join(struct.pack("<q", len(s)) + s for s in strings)
    done = subprocess.run([program], input=given, capture_output=True, check=True, timeout=300)
    return done.stdout.decode().split()


def test_a_digest_depends_on_the_bytes_alone(program: Path) -> None:
    """Not on the constants beside, which decide how threads share the parts."""
    rng = random.Random(1)
    strings = [rng.randbytes(n) for n in (0, 1, 31, 32, 33, PART, PART + 1, 3 * PART + 7)]
    together = digests(program, [*strings, *strings[::-1]])
    assert together[: len(strings)] == together[len(strings) :][::-1]
    assert [digests(program, [s])[0] for s in strings] == together[: len(strings)]
    assert len(set(together)) == len(strings)


def test_every_byte_and_the_length_count(program: Path) -> None:
    base = bytes(random.Random(2).randbytes(2 * PART + 40))
    places = (0, 7, 8, 31, 32, PART - 1, PART, 2 * PART + 32, 2 * PART + 39)
    changed = [base[:i] + bytes([base[i] ^ 64]) + base[i + 1 :] for i in places]
    lengths = [base[:-1], base + b"\0", b"", b"\0", b"\0" * 32, b"\0" * 33, b"\0" * PART]
    swapped = base[PART : 2 * PART] + base[:PART] + base[2 * PART :]
    found = digests(program, [base, *changed, *lengths, swapped])
    assert len(set(found)) == len(found) == len(changed) + len(lengths) + 2
