"""The emitter: a call and a variant in, the text of one kernel out.

``emit`` is pure.  ``launch_of`` says how that kernel is launched, for any sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import jinja2

from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import Target
from tracea_graph.kernels.gpu.families import (
    attention,
    attention_rows,
    convolution,
    elementwise,
    exact_convolution,
    exact_products,
    extremes,
    lookups,
    moves,
    products,
    rows,
    windows,
)
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.source import KernelSource
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["emit", "launch_of", "symbol_of", "vocabulary"]


class Family(Protocol):
    """A module of ``families``: kernels that share a template."""

    def name(self, call: Call) -> str:
        """The op in a symbol, with its epilogue and what else the text depends on."""
        ...

    def parameters(self, call: Call, variant: Variant) -> dict[str, Any]:
        """What the template asks for."""
        ...

    def shared(self, call: Call, variant: Variant) -> int:
        """Bytes of shared memory a block asks for."""
        ...

    def launch(self, call: Call, variant: Variant, symbol: str) -> Launch:
        """How the kernel of a call is launched."""
        ...


_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "elementwise.cu.in": elementwise,
        "rows.cu.in": rows,
        "gemm.cu.in": products,
        "attention.cu.in": attention,
        "attention_rows.cu.in": attention_rows,
        "conv.cu.in": convolution,
        "conv_fma.cu.in": exact_convolution,
        "embedding.cu.in": lookups,
        "same.cu.in": lookups,
        "take.cu.in": lookups,
        "arg.cu.in": extremes,
        "window.cu.in": windows,
        "move.cu.in": moves,
        "transpose.cu.in": moves,
        "gemm_fma.cu.in": exact_products,
    }
)


def symbol_of(call: Call, variant: Variant, target: Target) -> str:
    """``tracea_<dtype>_<op>[_<epilogue>]_<tile>__<architecture>``."""
    name = _FAMILIES[variant.template].name(call)
    return f"tracea_{call.dtype}_{name}_{variant.tile}__{target.architecture.name}"


def emit(call: Call, variant: Variant, target: Target) -> KernelSource:
    """The kernel of a call.  Its text depends on types, chain and attributes, not on sizes."""
    CALLS.of(call)
    family, symbol = _FAMILIES[variant.template], symbol_of(call, variant, target)
    body = _environment().get_template(variant.template).render(
        symbol=symbol, threads=variant.threads, **variant.params,
        **family.parameters(call, variant),
    )  # fmt: skip
    head = f"// {symbol}\n// From {variant.template}.  Generated, do not edit.\n"
    text = head + vocabulary(target) + body
    return KernelSource(symbol, text, variant.threads, family.shared(call, variant))


def vocabulary(target: Target) -> str:
    """What comes before every kernel: the words of a dialect, and those made of them."""
    names = (target.dialect.words, "values.h", "words.h")
    templates = map(_environment().get_template, names)
    return "".join(template.render(**target.dialect.parameters) for template in templates)


def launch_of(call: Call, variant: Variant, target: Target) -> Launch:
    """How that kernel is launched."""
    family = _FAMILIES[variant.template]
    return family.launch(call, variant, symbol_of(call, variant, target))


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        line_statement_prefix="//%",
        block_start_string="<%%",  # PTX has operands in braces
        block_end_string="%%>",
        variable_start_string="${",
        variable_end_string="}",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
