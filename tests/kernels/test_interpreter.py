"""The interpreter of programs has a function for each call, which takes what its schema names."""

from __future__ import annotations

import inspect

import pytest

from tests.interpreter import KERNELS
from tracea_graph.kernels.cpu.calls import CALLS


def test_each_call_has_a_function() -> None:
    assert KERNELS.keys() == {schema.op for schema in CALLS.values()}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_what_the_schema_names(name: str) -> None:
    """Operands and attributes by their names; a name that no schema of the op has is none."""
    schema = CALLS[name]
    taken = inspect.signature(KERNELS[schema.op])
    own = [part.name for part in (*schema.operands, *schema.attributes)]
    taken.bind(None, **dict.fromkeys(own))
    alike = (other for other in CALLS.values() if other.op == schema.op)
    known = {part.name for s in alike for part in (*s.operands, *s.attributes)}
    named = {p.name for p in taken.parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert named <= known
