"""Kernels of default tests are compiled quickly, those of slow tests as results have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernels.conformance import Optimization


@pytest.fixture(scope="session", autouse=True)
def optimization(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick = "not slow" in request.config.option.markexpr
        patch.setattr(Optimization, "quick", quick)
        yield
