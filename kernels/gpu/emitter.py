"""Generate the source of a kernel from a call and a variant.

``emit`` has no side effects.  ``launch_of`` gives the launch configuration, for symbolic sizes.
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
    caches,
    cells,
    convolution,
    elementwise,
    exact_convolution,
    exact_products,
    extremes,
    few_keys,
    few_rows,
    integers,
    lookups,
    moves,
    products,
    ramps,
    ranges,
    resizing,
    rows,
    selection,
    split_keys,
    warpgroup_attention,
    warpgroup_convolution,
    warpgroup_products,
    windows,
)
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.source import KernelSource
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["emit", "launch_of", "render", "symbol_of", "vocabulary"]


class Family(Protocol):
    """Protocol of the modules of ``families``: kernels that share a template."""

    def name(self, call: Call) -> str:
        """Return the op's part of a symbol: op, epilogue and whatever else the text depends on."""
        ...

    def parameters(self, call: Call, variant: Variant) -> dict[str, Any]:
        """Return the parameters of the template."""
        ...

    def shared(self, call: Call, variant: Variant) -> int:
        """Return the dynamic shared memory of a block, in bytes."""
        ...

    def launch(self, call: Call, variant: Variant, symbol: str) -> Launch:
        """Return the launch of the call's kernel."""
        ...


_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "elementwise.cu.in": elementwise,
        "rows.cu.in": rows,
        "gemm.cu.in": products,
        "gemm_bytes.cu.in": integers,
        "gemm_wgmma.cu.in": warpgroup_products,
        "gemm_few.cu.in": few_rows,
        "attention.cu.in": attention,
        "attention_few.cu.in": few_keys,
        "attention_split.cu.in": split_keys,
        "attention_wgmma.cu.in": warpgroup_attention,
        "attention_rows.cu.in": attention_rows,
        "conv.cu.in": convolution,
        "conv_bytes.cu.in": integers,
        "conv_fma.cu.in": exact_convolution,
        "conv_wgmma.cu.in": warpgroup_convolution,
        "window_bytes.cu.in": integers,
        "embedding.cu.in": lookups,
        "same.cu.in": lookups,
        "take.cu.in": lookups,
        "arg.cu.in": extremes,
        "iota.cu.in": ramps,
        "kv_append.cu.in": caches,
        "recurrent.cu.in": cells,
        "resize.cu.in": resizing,
        "top_k.cu.in": selection,
        "value_range.cu.in": ranges,
        "window.cu.in": windows,
        "window_tile.cu.in": windows,
        "pool_whole.cu.in": windows,
        "move.cu.in": moves,
        "transpose.cu.in": moves,
        "gemm_fma.cu.in": exact_products,
    }
)


def symbol_of(call: Call, variant: Variant, target: Target) -> str:
    """Return ``tracea_<dtype>_<op>[_<epilogue>]_<tile>__<architecture>``."""
    name = _FAMILIES[variant.template].name(call)
    return f"tracea_{call.dtype}_{name}_{variant.tile}__{target.architecture.name}"


def emit(call: Call, variant: Variant, target: Target) -> KernelSource:
    """Generate the kernel of a call.

    The text depends on types, chain and attributes, not on sizes.
    """
    CALLS.of(call)
    family, symbol = _FAMILIES[variant.template], symbol_of(call, variant, target)
    body = render(
        variant.template, symbol=symbol, threads=variant.threads, dialect=target.dialect.name,
        **variant.params, **family.parameters(call, variant),
    )  # fmt: skip
    head = f"// {symbol}\n// From {variant.template}.  Generated, do not edit.\n"
    text = head + vocabulary(target) + body
    return KernelSource(symbol, text, variant.threads, family.shared(call, variant))


def render(template: str, **parameters: Any) -> str:
    """Render a template by its file name."""
    return _environment().get_template(template).render(**parameters)


def vocabulary(target: Target) -> str:
    """Return the preamble of every kernel: the dialect's primitives and those built on them."""
    names = (target.dialect.words, "values.h", "words.h")
    templates = map(_environment().get_template, names)
    return "".join(template.render(**target.dialect.parameters) for template in templates)


def launch_of(call: Call, variant: Variant, target: Target) -> Launch:
    """Return the launch of the kernel that ``emit`` generates for these arguments."""
    family = _FAMILIES[variant.template]
    return family.launch(call, variant, symbol_of(call, variant, target))


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        line_statement_prefix="//%",
        block_start_string="<%%",  # because PTX operands stand in braces
        block_end_string="%%>",
        variable_start_string="${",
        variable_end_string="}",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
