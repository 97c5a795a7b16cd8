"""Generate ``runtime/schema.h``, what the C++ runtime must know of each call, and
``runtime/kernels.h``, the functions that an instruction-set level offers.

From the records of calls come the opcodes, the places of attributes and operands in a call, the
numbers of an enumeration's words, and the tables by which the runtime checks what it decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import fill
from types import MappingProxyType

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.calls import CALLS, LIMITS
from tracea_graph.kernels.cpu.exported_functions import ARM_KERNELS, KERNELS, ExportedFunction
from tracea_graph.kernels.cpu.host_loop_units import COMMON, LOOP_UNITS, unit_of
from tracea_graph.kernels.cpu.schedule import ConvSchedule, GemmSchedule, TaskSchedule
from tracea_graph.kernels.program import Schedule
from tracea_graph.kernels.schema import Attribute, Calls, CallSchema, Operand

__all__ = ["ON_ARM", "is_arm_call", "kernels_header", "schema_header"]

ON_ARM = "defined(__aarch64__)"
"""The preprocessor's condition for what only Arm's processors have."""

_SCHEDULES: Mapping[type[Schedule] | None, str] = {
    None: "kNoSchedule",
    GemmSchedule: "kGemmSchedule",
    ConvSchedule: "kConvSchedule",
    TaskSchedule: "kTaskSchedule",
}
_CHAINS = {
    "none": "kNoChain", "required": "kChainRequired", "epilogue": "kEpilogue",
    "prologue": "kPrologue",
}  # fmt: skip
_MANY = {
    None: "kOnce",
    "operands": "kChainOperands",
    "inputs": "kChainInputs",
    "results": "kChainResults",
}

_HEAD = """\
// The records of kernel calls, written by schema_header.py: edit calls.py.
#pragma once
#include <stdint.h>

namespace tracea {

"""
_TYPES = """\
enum CallChain : uint8_t { kNoChain, kChainRequired, kEpilogue, kPrologue };
enum CallSchedule : uint8_t { kNoSchedule, kGemmSchedule, kConvSchedule, kTaskSchedule };

// How many views an operand stands for, where that is not an attribute's value.
enum Many : int32_t {
  kOnce = -1, kChainOperands = -2, kChainInputs = -3, kChainResults = -4, kPerNumber = -5
};

// Open: there are axes without name, as many in every open operand of a call.
enum Trait : uint32_t { kOpen = 1, kAnyRank = 2, kOptional = 4, kWritten = 8 };

// One whole number, `count` in a row, or, with count 0, a list as long as the call has it.
struct AttributeSpec {
  const char* name;
  int64_t low, high;  // both included
  int32_t count;
  uint32_t words;  // of an enumeration, the numbers that have a word; else 0
};
struct OperandSpec {
  const char* name;
  int32_t rank;    // axes that are named
  uint32_t traits;
  int32_t many;    // Many, or the place of the attribute that says it
  uint32_t types;  // by ONNX element code; 0: as the chain has it
};
struct CallSpec {
  const char* name;
  Op op;
  CallChain chain;
  CallSchedule schedule;
  uint8_t attributes, floats, operands;  // attributes of whole numbers, single floats
  int8_t parts;     // the place of the number of results, or -1: one, or as many as the chain has
  bool float_list;  // behind the single floats
  const AttributeSpec* attribute;
  const OperandSpec* operand;
};

"""


def schema_header(calls: Calls = CALLS, limits: Mapping[str, int] = LIMITS) -> str:
    """Return the text of ``runtime/schema.h``.

    Raises GraphError if an attribute has different positions in calls of one op.
    """
    ops = {
        schema.op: [s for s in calls.values() if s.op == schema.op] for schema in calls.values()
    }
    parts = [
        _HEAD,
        *(f"constexpr int64_t {name} = {value};\n" for name, value in limits.items()),
        "\n",
        _enum("Opcode", [(_constant(name), i) for i, name in enumerate(calls, 1)]),
        *_last_opcode(calls),
        _enum("Op", [(_constant(op) + "Op", i) for i, op in enumerate(ops)]),
        f"constexpr int32_t kOps = {len(ops)};\n",
        *_loop_units(list(ops)),
        "\n// Places among a call's whole numbers, floats and views, and words' numbers.\n",
        *(_places(op, schemas) for op, schemas in ops.items()),
        "\n",
        _TYPES,
        *_tables(calls),
        "\n}  // namespace tracea\n",
    ]
    return "".join(parts)


_KERNELS_HEAD = """\
// Functions of kernels, written by schema_header.py: edit exported_functions.py and variants.py.
#pragma once
#include "tracea_kernels.h"

// Everything one instruction-set level offers; the generated table fills one per level, with null
// for kernels the library does not hold.
struct tracea_isa_table {
  const char* isa;             // its name in variants.py
  int32_t gemm_mr, gemm_nv;    // largest register tile
  int32_t bf16_mr, bf16_nv;  // the same of gemm_bf16
  int32_t int8_mr, int8_nv;  // and of gemm_int8
  int32_t nbits_mr, nbits_nv;  // and of gemm_nbits
  int32_t conv_pixels, conv_nv;
  int32_t bf16_pixels;        // conv_pixels of conv_bf16
"""
_KERNELS_CHAINS = """\
  int32_t chains;              // entries in chain_key / chain
  const int64_t* chain_key;    // ascending
  const tracea_chain_fn* chain;
"""
_KERNELS_TAIL = """\
};

namespace tracea {

// Whether a level has the kernels of a call, by opcode - 1; null: it needs none.
constexpr bool (*kHeld[])(const tracea_isa_table&) = {
"""


def kernels_header(calls: Calls = CALLS) -> str:
    """The text of ``runtime/kernels.h``."""
    held = _rows(calls, lambda schema: f"    {_held(schema)},  // {schema.name}\n")
    return "".join(
        (
            _KERNELS_HEAD, *_fields(KERNELS), _KERNELS_CHAINS,
            *_on_arm(_fields(ARM_KERNELS)), _KERNELS_TAIL, *held,
            "};\n\n}  // namespace tracea\n",
        )
    )  # fmt: skip


def _fields(kernels: Mapping[str, Sequence[ExportedFunction]]) -> Iterator[str]:
    for f in (f for functions in kernels.values() for f in functions):
        yield f"  {f.gives} (*{f.name})({f.takes});{f'  // {f.note}' if f.note else ''}\n"


def _on_arm(lines: Iterable[str]) -> list[str]:
    """Lines for Arm alone, so that nothing changes in libraries for other processors."""
    found = list(lines)
    return [f"#if {ON_ARM}\n", *found, "#endif\n"] if found else []


def is_arm_call(schema: CallSchema) -> bool:
    """Return whether only Arm has the kernels of a call."""
    return not ARM_KERNELS.keys().isdisjoint(schema.needs)


def _rows(calls: Calls, row: Callable[[CallSchema], str]) -> list[str]:
    """A row of a table per call, by opcode; calls that Arm alone has are the last."""
    every = [schema for schema in calls.values() if not is_arm_call(schema)]
    return [*map(row, every), *_on_arm(map(row, (s for s in calls.values() if is_arm_call(s))))]


def _last_opcode(calls: Calls) -> Iterator[str]:
    """The constant of how many calls a processor has.

    Raises GraphError if a call that every processor has follows one that Arm alone has.
    """
    arm = [is_arm_call(schema) for schema in calls.values()]
    if sorted(arm) != arm:
        raise GraphError("Calls that Arm alone has must be the last.")
    line = "constexpr int32_t kLastOpcode = {};\n"
    if any(arm):
        yield f"#if {ON_ARM}\n{line.format(len(arm))}#else\n"
    yield line.format(arm.count(False))
    if any(arm):
        yield "#endif\n"


def _held(schema: CallSchema) -> str:
    """The C++ predicate whether a level has the kernels that a call needs."""
    if not schema.needs:
        return "nullptr"
    every = {**KERNELS, **ARM_KERNELS}
    has = " && ".join(f"t.{every[kernel][0].name} != nullptr" for kernel in schema.needs)
    return f"[](const tracea_isa_table& t) {{ return {has}; }}"


def _loop_units(ops: Sequence[str]) -> Iterator[str]:
    """The enumeration of host-loop units, and the table of every op's unit."""
    names = {unit: f"k{unit.capitalize()}Unit" for unit in (COMMON, *LOOP_UNITS)}
    yield f"enum LoopUnit : uint8_t {{ {', '.join(names.values())} }};\n"
    units = ", ".join(names[unit_of(op)] for op in ops)
    inner = fill(units, 96, initial_indent="  ", subsequent_indent="  ")
    yield f"constexpr LoopUnit kLoopUnits[] = {{  // by op\n{inner}\n}};\n"


def _constant(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def _enum(name: str, items: Iterable[tuple[str, int]]) -> str:
    """An enumeration; a number is written only if it is not its predecessor plus one."""
    made, expected = list[str](), 0
    for constant, value in items:
        made.append(constant if value == expected else f"{constant} = {value}")
        expected = value + 1
    whole = f"enum {name} : int32_t {{ {', '.join(made)} }};\n"
    if len(whole) <= 100:
        return whole
    inner = fill(", ".join(made), 96, initial_indent="  ", subsequent_indent="  ")
    return f"enum {name} : int32_t {{\n{inner}\n}};\n"


# ---- places --------------------------------------------------------------------------------


def _places(op: str, schemas: Sequence[CallSchema]) -> str:
    made = [
        _enum(name, items.items())
        for name, items in (
            ("Int", _agreed(op, [_slots(s.integers) for s in schemas], _total(schemas))),
            ("Float", _agreed(op, [_slots(s.reals) for s in schemas])),
            ("View", _same(_operands(s) for s in schemas)),
        )
        if items
    ]
    words: dict[str, dict[str, int]] = {}
    for attribute in (a for s in schemas for a in s.integers):
        named = {w: n for w, n in (attribute.words or {}).items() if isinstance(w, str)}
        if named:
            words[attribute.name] = words.get(attribute.name, {}) | named
    for name, known in words.items():
        first = _constant(name)
        items = [(first + _constant(w)[1:], n) for w, n in sorted(known.items(), key=_number)]
        made.append(_enum(first[1:], items))
    return f"namespace {op}_call {{\n{''.join(made)}}}\n" if made else ""


def _number(item: tuple[str, int]) -> int:
    return item[1]


def _slots(attributes: Sequence[Attribute]) -> dict[str, int]:
    """The place of each attribute's first number; attributes after a list are left out."""
    lists = [i for i, attribute in enumerate(attributes) if not attribute.count]
    known = attributes[: lists[0] + 1] if lists else attributes
    return {_constant(attribute.name): at for at, attribute in _walk(known)}


def _total(schemas: Sequence[CallSchema]) -> dict[str, int]:
    """How many whole numbers a call has, if all calls of its op have equally many."""
    found = {sum(a.count for a in s.integers) for s in schemas}
    lists = any(not a.count for s in schemas for a in s.integers)
    return {} if lists or len(found) > 1 else {"kInts": found.pop()}


def _operands(schema: CallSchema) -> dict[str, int]:
    """The place of each operand's first view; those after several views are left out."""
    found = dict[str, int]()
    for at, operand in enumerate(schema.operands):
        found[_constant(operand.name)] = at
        if operand.many:
            break
    return found


def _agreed(
    op: str, found: Sequence[dict[str, int]], last: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Merge the places in all calls of an op, which must agree."""
    merged = dict[str, int]()
    for one in found:
        for name, at in one.items():
            if merged.setdefault(name, at) != at:
                raise GraphError(f"Calls of {op} have {name} at places {merged[name]} and {at}.")
    return dict(sorted(merged.items(), key=_number)) | (dict(last) if merged else {})


def _same(found: Iterable[dict[str, int]]) -> dict[str, int]:
    """Merge the places of views; leave out those that differ, as scales may precede them."""
    places: dict[str, set[int]] = {}
    for one in found:
        for name, at in one.items():
            places.setdefault(name, set()).add(at)
    merged = {name: min(at) for name, at in places.items() if len(at) == 1}
    return dict(sorted(merged.items(), key=_number))


# ---- tables --------------------------------------------------------------------------------


def _tables(calls: Calls) -> Iterator[str]:
    """The arrays and the table of all calls; equal calls share an array."""
    arrays, rows = dict[str, str](), dict[str, str]()
    for schema in calls.values():
        name = _constant(schema.name)
        integers = [_attribute(a) for a in schema.integers]
        operands = [_operand(schema, o) for o in schema.operands]
        ints = "nullptr"
        if integers:
            ints = arrays.setdefault(_array("AttributeSpec", integers), f"{name}Ints")
        views = arrays.setdefault(_array("OperandSpec", operands), f"{name}Operands")
        rows[schema.name] = _row(schema, ints, views)
    for array, name in arrays.items():
        yield array.replace("[]", f"{name}[]", 1)
    yield "constexpr CallSpec kCalls[] = {  // by opcode - 1\n"
    yield from _rows(calls, lambda schema: rows[schema.name])
    yield "};\n"
    yield "\n// What profilers show of calls, by opcode - 1.\n"
    yield "constexpr const char* kPhases[] = {\n"
    yield from _rows(calls, lambda schema: f'    "{schema.phase}: {schema.name}",\n')
    yield "};\n"


def _array(kind: str, items: Sequence[str]) -> str:
    return f"constexpr {kind} [] = {{\n" + "".join(f"    {item},\n" for item in items) + "};\n"


def _attribute(a: Attribute) -> str:
    words = sum(1 << number for number in (a.words or {}).values())
    return f'{{"{a.name}", {int(a.low)}, {int(a.high)}, {a.count}, {words:#x}}}'


def _operand(schema: CallSchema, o: Operand) -> str:
    traits = {
        "kOpen": o.open, "kAnyRank": o.shape == ("*",), "kOptional": o.optional,
        "kWritten": o.written,
    }  # fmt: skip
    held = " | ".join(name for name, has in traits.items() if has) or "0"
    return f'{{"{o.name}", {o.named}, {held}, {_many(schema, o)}, {_types(o):#x}}}'


def _many(schema: CallSchema, o: Operand) -> str:
    if o.many in _MANY:
        return _MANY[o.many]
    at, attribute = next((at, a) for at, a in _walk(schema.integers) if a.name == o.many)
    return str(at) if attribute.count else "kPerNumber"


def _walk(attributes: Sequence[Attribute]) -> Iterator[tuple[int, Attribute]]:
    """Attributes with the place of their first number."""
    at = 0
    for attribute in attributes:
        yield at, attribute
        at += attribute.count


def _types(o: Operand) -> int:
    if o.types == ("chain",):
        return 0
    if o.types == ("any",):
        return 0xFFFFFFFE
    return sum(1 << dtype.onnx for dtype in DType if dtype.short in o.types)


def _row(schema: CallSchema, ints: str, views: str) -> str:
    reals = schema.reals
    listed = any(not a.count for a in reals)
    parts = next((at for at, a in _walk(schema.integers) if a.name == "parts"), -1)
    return (
        f'    {{"{schema.name}", {_constant(schema.op)}Op, {_CHAINS[schema.chain]}, '
        f"{_SCHEDULES[schema.schedule]},\n     {len(schema.integers)}, "
        f"{sum(a.count for a in reals)}, {len(schema.operands)}, {parts}, "
        f"{'true' if listed else 'false'}, {ints}, {views}}},\n"
    )
