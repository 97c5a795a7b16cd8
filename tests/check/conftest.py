"""Workers are started in the tests of workers, and not forked as in those of what uses them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tracea_graph.check import worker_process


@pytest.fixture(scope="module", autouse=True)
def started_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", subprocess)
        yield
