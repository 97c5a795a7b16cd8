"""The runtime decompresses what zlib compresses, and refuses what is damaged."""

from __future__ import annotations

import random
import struct
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tracea_graph.kernels import gpu
from tracea_graph.toolchain.compilers import find_compiler

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("inflate.cpp")
HEADERS = Path(str(gpu.__file__)).parent
STRATEGIES = (
    zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED,
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inflate")
    flags = ("-std=c++17", "-O1", f"-I{HEADERS}", str(SOURCE), "-o", "inflate")
    find_compiler().run(flags, folder)
    return folder / "inflate"


def inflated(program: Path, streams: Iterable[tuple[bytes, int]]) -> list[bytes | None]:
    """Return what the runtime makes of each stream of a stated result's size."""
    pairs = list(streams)
    given = b"".join(struct.pack("<qq", len(s), size) + s for s, size in pairs)
    done = subprocess.run([program], input=given, capture_output=True, check=True, timeout=300)
    found, at = list[bytes | None](), 0
    for _, size in pairs:
        ok = done.stdout[at : at + 1] == b"1"
        found.append(done.stdout[at + 1 : at + 1 + size] if ok else None)
        at += 1 + (size if ok else 0)
    assert at == len(done.stdout)
    return found


def packed(data: bytes, level: int, strategy: int) -> bytes:
    made = zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS, 9, strategy)
    return made.compress(data) + made.flush()


def contents() -> dict[str, bytes]:
    """Return bytes of all kinds: none, one, noise, runs, text, distant copies, rare symbols."""
    own = random.Random(0)
    noise = own.randbytes(70_000)
    skewed = b"".join(bytes([i]) * (1 << min(i, 15)) for i in range(20))
    return {
        "nothing": b"",
        "a byte": b"\7",
        "noise": noise,
        "zeros": bytes(200_000),
        "text": HEADERS.joinpath("runtime", "run.h").read_bytes(),
        "copies from 32 KB before": noise[:32_768] * 2 + noise[:100],
        "codes of all lengths": bytes(own.sample(skewed, len(skewed))),
    }


@pytest.mark.parametrize("name", contents())
def test_streams_of_zlib_become_what_they_were(program: Path, name: str) -> None:
    data = contents()[name]
    streams = [packed(data, level, s) for level in (0, 1, 6, 9) for s in STRATEGIES]
    assert inflated(program, [(s, len(data)) for s in streams]) == [data] * len(streams)


def test_other_sizes_are_refused(program: Path) -> None:
    data = contents()["text"]
    stream = zlib.compress(data)
    sizes = (0, len(data) - 1, len(data) + 1, 2 * len(data))
    assert inflated(program, [(stream, size) for size in sizes]) == [None] * len(sizes)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("level", [0, 6])
def test_damage_is_refused(program: Path, strategy: int, level: int) -> None:
    data = contents()["text"][:600]
    stream = packed(data, level, strategy)
    cut = [(stream[:end], len(data)) for end in range(len(stream))]
    assert inflated(program, cut) == [None] * len(cut)
    wrong = list[bytes]()
    for place in range(8 * len(stream)):
        turned = bytearray(stream)
        turned[place // 8] ^= 1 << place % 8
        wrong.append(bytes(turned))
    for stream, got in zip(wrong, inflated(program, [(s, len(data)) for s in wrong]), strict=True):
        known = expected(stream, len(data))
        assert got == known or (known is None and got == data)  # a code that nothing uses


def test_noise_is_refused(program: Path) -> None:
    own = random.Random(1)
    streams = [b"\x78\x9c" + own.randbytes(own.randrange(200)) for _ in range(3000)]
    assert inflated(program, [(s, 1000) for s in streams]) == [expected(s, 1000) for s in streams]


def expected(stream: bytes, size: int) -> bytes | None:
    """Return what zlib makes of a stream: None unless it is whole and of this size."""
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(stream)
    except zlib.error:
        return None
    return data if reader.eof and len(data) == size else None
