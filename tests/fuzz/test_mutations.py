"""Damaged files: refused with a sentence or optimized, in bounded time, memory and space."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest

from tests.fuzz import mutations
from tests.fuzz.mutations import mutate
from tests.fuzz.strategies import drawn
from tests.suite.node_tests import light_models
from tests.tiny import ROOT, transformer

pytestmark = pytest.mark.compiler

FEW, MANY = (24, 60), (150, 350)
"""Small and real files of the default seed; of each slow one."""
LIMIT, MEMORY = 6000.0, 1 << 30
"""Seconds for a batch of files, bytes for a process."""
_OTHERS = ("stderr", ".ses")
"""Files that the test and ONNX Runtime's telemetry write."""
MEANT = ("ModelError", "UsageError", "VerifyError")
"""What a damaged file may be answered with."""


@dataclass
class Found:
    """What a batch did wrong, and how much memory its processes took."""

    wrong: list[str] = field(default_factory=list)
    answered: int = 0
    written: int = 0
    peak: int = 0


def damaged(folder: Path, sources: Sequence[bytes], count: int, seed: int) -> list[Path]:
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    paths = []
    for i in range(count):
        path = folder / f"d{seed}_{i}.onnx"
        path.write_bytes(mutate(rng, rng.choice(sources), sources))
        paths.append(path)
    return paths


def run(folder: Path, paths: Sequence[Path], how: str) -> Found:
    """Optimize the files in a process of their own."""
    for name in ("out", "work", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    listed = folder / "files.txt"
    listed.write_text("\n".join(map(str, paths)), encoding="utf-8")
    before = list(_files(folder))
    script = str(Path(mutations.__file__))
    command = [sys.executable, script, str(listed), str(folder / "out"), how]
    with (folder / "stderr").open("w") as stderr:
        try:
            ran = subprocess.run(
                command, cwd=folder / "work",
                env={**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE, stderr=stderr, timeout=LIMIT, check=False, text=True,
            )  # fmt: skip
            said, code = ran.stdout, ran.returncode
        except subprocess.TimeoutExpired as late:
            said, code = (late.stdout or b"").decode(), -1
    found = _heard(folder, [json.loads(line) for line in said.splitlines()], code)
    if list(_files(folder)) != before:
        found.wrong.append(f"files outside the output folder: {set(_files(folder)) - {*before}}")
    return found


def _heard(folder: Path, lines: Sequence[dict[str, object]], code: int) -> Found:
    found = Found()
    for line in lines:
        found.peak = max(
            [found.peak, *(int(str(line.get(k, 0))) for k in ("peak", "worker_peak"))]
        )
        if "file" in line:
            found.answered += 1
            error = str(line["error"])
            found.written += not error
            if error and not error.startswith(MEANT):
                found.wrong.append(f"{line['file']}: {error}")
    if code:
        steps = [line["step"] for line in lines if "step" in line]
        tail = (folder / "stderr").read_text()[-400:]
        found.wrong.append(f"exit code {code} after {steps[-1:]}: {tail}")
    elif found.peak > MEMORY:
        found.wrong.append(f"a process took {found.peak >> 20} MiB")
    return found


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Every file that must neither come nor change."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and folder / "out" not in path.parents and path.name not in _OTHERS:
            yield str(path), path.stat().st_mtime_ns


def small_models(count: int, seed: int) -> list[bytes]:
    return [onnx.ModelProto.SerializeToString(m) for m in drawn(count, seed)]


def real_models(folder: Path) -> list[bytes]:
    """Nets, most of whose bytes are structure."""
    light = [m for m in light_models() if m.stat().st_size < 1 << 16]
    return [m.read_bytes() for m in (*light, transformer(folder))]


def test_damaged_files_do_no_harm(fuzz_seed: int, tmp_path: Path) -> None:
    small, real = MANY if fuzz_seed else FEW
    batches = (("verify", small_models(40, 3), small), ("plain", real_models(tmp_path), real))
    found = [
        run(tmp_path / how, damaged(tmp_path / how / "in", kind, count, fuzz_seed), how)
        for how, kind, count in batches
    ]
    assert not [sentence for batch in found for sentence in batch.wrong]
    assert sum(batch.answered for batch in found) == small + real
    assert sum(batch.written for batch in found) > (small + real) // 50
