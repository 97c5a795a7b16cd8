"""The runtime's header and the documentation have every call as its record says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracea_graph.kernels.cpu
from tracea_graph.errors import GraphError
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.exported_functions import ARM_KERNELS, KERNELS
from tracea_graph.kernels.cpu.schema_header import kernels_header, schema_header
from tracea_graph.kernels.schema import Calls, CallSchema, Operand, choice, number, numbers

HEADER = Path(tracea_graph.kernels.cpu.__file__).parent / "runtime" / "schema.h"


def test_the_header_is_that_of_the_records(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        HEADER.write_text(schema_header())
    assert HEADER.read_text() == schema_header(), "run pytest --update-golden"


def test_the_header_of_kernels_is_that_of_the_records(request: pytest.FixtureRequest) -> None:
    header = HEADER.with_name("kernels.h")
    if request.config.getoption("--update-golden"):
        header.write_text(kernels_header())
    assert header.read_text() == kernels_header(), "run pytest --update-golden"


def test_a_level_has_a_field_for_every_function_and_a_row_for_every_call() -> None:
    header = kernels_header()
    fields = re.findall(r"^  (?:const )?\w+\*? \(\*(\w+)\)\(", header, re.M)
    every = {**KERNELS, **ARM_KERNELS}
    assert fields == [f.name for functions in every.values() for f in functions]
    assert len(set(fields)) == len(fields)
    assert re.findall(r"// (\w+)$", header.split("kHeld[]")[1], re.M)[: len(CALLS)] == list(CALLS)
    assert "t.attention != nullptr && t.attention_bf16 != nullptr && t.gemm_bf16 !=" in header


def test_views_of_every_call_are_documented() -> None:
    page = (HEADER.parents[1] / "CALLS.md").read_text(encoding="utf-8")
    tables = page.partition("<!-- kernel calls: end -->")[2]
    firsts = re.findall(r"^\| (`[^|]*) \|", tables, re.M)
    assert {name for first in firsts for name in re.findall(r"`(\w+)`", first)} == set(CALLS)


def test_every_call_has_a_number_and_a_row() -> None:
    header = schema_header()
    assert re.findall(r'^    \{"(\w+)", k\w+Op, ', header, re.M) == list(CALLS)
    on_arm = [s for s in CALLS.values() if not ARM_KERNELS.keys().isdisjoint(s.needs)]
    assert on_arm == list(CALLS.values())[-len(on_arm) :]
    last = re.findall(r"constexpr int32_t kLastOpcode = (\d+);", header)
    assert last == [str(len(CALLS)), str(len(CALLS) - len(on_arm))]
    arm_alone = re.findall(r"#if defined\(__aarch64__\)\n((?s:.*?))#endif", header)
    rows = "".join(arm_alone[1:])
    assert re.findall(r'^    \{"(\w+)", ', rows, re.M) == [s.name for s in on_arm]


def test_places_count_through_attributes_and_operands() -> None:
    call = CallSchema(
        "blend",
        (Operand("x"), Operand("rest", many="inputs"), Operand("y", written=True)),
        (number("first", 0, 9), numbers("pair", 2, 0, 9), choice("how", {"over": 3, "under": 4})),
        chain="epilogue",
    )
    header = schema_header(Calls((call,)), {"kMaxStep": 7})
    assert "constexpr int64_t kMaxStep = 7;" in header
    assert "enum Int : int32_t { kFirst, kPair, kHow = 3, kInts };" in header
    assert "enum View : int32_t { kX, kRest };" in header  # y lies behind an unknown number
    assert "enum How : int32_t { kHowOver = 3, kHowUnder };" in header
    assert '{"how", 3, 4, 1, 0x18},' in header
    assert '{"rest", 0, kOpen, kChainInputs, 0x2},' in header


def test_calls_of_one_op_agree_where_an_attribute_lies() -> None:
    x = (Operand("x"),)
    calls = Calls(
        (
            CallSchema("blend", x, (number("first", 0, 9), number("second", 0, 9))),
            CallSchema("blend", x, (number("second", 0, 9),), "bf16"),
        )
    )
    with pytest.raises(GraphError, match="kSecond at places 1 and 0"):
        schema_header(calls, {})
