"""The conformance suite on a GPU."""

from __future__ import annotations

import pytest

from tests.backends.conformance import Conformance

pytestmark = [pytest.mark.gpu, pytest.mark.compiler]


class TestCuda(Conformance):
    target = "cuda"
