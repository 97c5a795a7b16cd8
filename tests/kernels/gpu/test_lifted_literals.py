"""Layers of 8-bit integers share the kernel of their products: their numbers are its arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.integer_cases import LEVELS, REQUANTIZED, gemm
from tests.kernels.gpu.machine import Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.families.lifted_literals import lifted
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.ops.chain import Chain, Step

TARGET = Target(CUDA, ARCHITECTURES["sm_90a"])


def product(chain: Chain) -> tuple[str, str, list[float]]:
    """The symbol and the text of a product's kernel, and its last arguments."""
    call, _ = gemm(DType.U8, 140, 136, 144, 3, chain=chain)(Memory(), np.random.default_rng(0))
    variant = find(call, TARGET.architecture, "128x128x128x6x1")
    launch = launch_of(call, variant, TARGET)
    numbers = [float(a.value) for a in launch.arguments if a.kind == "f32"]
    return launch.symbol, emit_kernel(call, variant, TARGET).text, numbers


def with_numbers(chain: Chain, factor: float, more: float) -> Chain:
    """A chain of other factors, and of bounds moved by a number."""
    steps = list[Step]()
    for step in chain.steps:
        ref, *numbers = step.args
        if step.op == "mul":
            steps.append(Step("mul", (ref, *(n * factor for n in numbers))))
        elif step.op == "saturate":
            steps.append(Step("saturate", (ref, *(n + more for n in numbers))))
        else:
            steps.append(step)
    return replace(chain, steps=tuple(steps))


@pytest.mark.parametrize("chain", [REQUANTIZED, LEVELS])
def test_other_numbers_take_the_same_kernel(chain: Chain) -> None:
    """With a table of results too, whose first level is a number."""
    first, second = product(chain), product(with_numbers(chain, 0.75, 7.0))
    assert first[:2] == second[:2]
    assert len(first[2]) == len(second[2]) >= 3 and first[2] != second[2]
    assert chain.steps[0].args[1] in first[2]


def test_other_steps_take_another_kernel() -> None:
    steps = REQUANTIZED.steps
    other = replace(REQUANTIZED, steps=(steps[0], Step("sub", (2, 1)), *steps[2:]))
    assert product(REQUANTIZED)[0] != product(other)[0]


def test_divisors_with_exact_inverses_take_another_kernel() -> None:
    """They are one multiplication."""
    divided = [replace(REQUANTIZED, steps=(Step("div", (0, by)), *REQUANTIZED.steps[1:]))
               for by in (3.0, 5.0, 4.0)]  # fmt: skip
    three, five, four = (product(chain)[0] for chain in divided)
    assert three == five != four


def test_names_stand_for_numbers_in_order() -> None:
    found = lifted({"text": "full|mul(0,0.5)", "steps": ["a = x0 * set1(0x1.0p-1f);"],
                    "results": (), "table": None})  # fmt: skip
    assert found.parameters["steps"] == ["a = x0 * k0;"] and found.values == (0.5,)
    assert found.parameters["text"] == "full|mul(0,k)" and found.names == ("k0",)
