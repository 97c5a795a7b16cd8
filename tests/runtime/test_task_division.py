"""Convolutions of small images are shared evenly among many threads, each part of them once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime.compiled_program import compiled_program

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("task_division.cpp")

MATRIX_TILE, VECTOR_TILE = 32, 14
POINTWISE = (  # MobileNetV2's: height and width, blocks of 16 filters, thousands of multiply-adds
    (28, 2, 2050), (14, 4, 1380), (14, 24, 2750), (14, 6, 4130), (14, 36, 6190), (7, 10, 2950),
    (7, 60, 4920), (7, 20, 9830), (7, 80, 13110),
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_program(SOURCE, tmp_path_factory.mktemp("division"), "-pthread")


def divided(program: Path, *lines: str) -> list[list[int]]:
    """Return the numbers that the program prints for every line."""
    done = subprocess.run(
        [program], input="\n".join(lines), text=True, capture_output=True, check=True, timeout=60
    )
    return [[*map(int, line.split())] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("pixels", [MATRIX_TILE, VECTOR_TILE])
@pytest.mark.parametrize("threads", [8, 16])
def test_no_thread_has_much_more_than_its_share(program: Path, pixels: int, threads: int) -> None:
    """Ten tiles of 25 outputs for 16 threads would be 1.6 times the share of the busiest."""
    lines = [f"conv {threads} {pixels} {n} {n} {b} {w}000" for n, b, w in POINTWISE]
    for (size, *_), cut in zip(POINTWISE, divided(program, *lines), strict=True):
        tiles, along, columns, per_task, most = cut
        assert along <= tiles
        assert 1 <= per_task <= columns
        assert most * threads <= 1.31 * size * size * columns, (size, cut)


@pytest.mark.parametrize("threads", [3, 8, 16, 23])
@pytest.mark.parametrize("blocks", [1, 12, 24, 36, 60])
@pytest.mark.parametrize("size", [7, 14])
def test_every_line_is_computed_once(program: Path, size: int, blocks: int, threads: int) -> None:
    ((_, *times),) = divided(program, f"lines {threads} {size} {size} {blocks}")
    assert times == [1] * (size * blocks)


def test_blocks_that_are_no_multiple_of_the_threads_make_a_task_for_each(program: Path) -> None:
    """24 tasks on 16 threads take as long as 32: stretches of 21 lines do not."""
    counts = [one[0] for one in divided(program, "lines 16 14 14 24", "lines 16 14 14 32")]
    assert counts == [16, 32]


def test_a_first_layer_has_as_many_tasks_for_each_thread(program: Path) -> None:
    lines = ("rows 16 1 112", "rows 8 1 112", "rows 2 1 112", "rows 16 16 112", "rows 16 1 3")
    assert divided(program, *lines) == [[7], [7], [8], [8], [1]]


def test_slow_cores_make_more_tasks(program: Path) -> None:
    """A slow core's only task would be waited for; where it takes twice as long, each has four."""
    lines = ("even 8 1 8 100", "even 8 2 8 100", "even 8 3 8 20", "even 1 2 1 100")
    assert divided(program, *lines) == [[8], [32], [20], [1]]
