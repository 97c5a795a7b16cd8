"""The conformance suite on the CPU backend."""

from __future__ import annotations

import pytest

from tests.backends.conformance import Conformance

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]


class TestHost(Conformance):
    target = "host"


class TestScalar(Conformance):
    target = "cpu:scalar"
