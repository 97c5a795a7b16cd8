"""Products of every shape as whole programs of symbolic sizes: from one row to many, of few
numbers and of several blocks of k, columns that fill panels and that do not; what follows the sum;
float32, bf16 and integers; and products of two activations, in batches, either of them transposed.
Tables in which any two of these properties meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.convolutions import ADD_RELU, SILU
from tests.pairwise import pairwise
from tests.runtime.answers import assert_threads_agree
from tests.runtime.cases import GELU_RESIDUAL
from tests.runtime.shapes import by_precision, named_errors
from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.panels import (
    INT16,
    PANELS,
    VNNI2,
    WEIGHT_ONLY_BF16,
    pack_int16,
    pack_panels,
    pack_vnni2,
)
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.weight_layouts import KN, NK

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33, 64, 130, 257)
CALM = 1e-2
"""Of norms: one number divided by its own size shows every bit that is rounded."""
POST_OPS: dict[str, dict[str, Any]] = {
    "none": {},
    "silu": {"epilogue": SILU},
    "residual": {"epilogue": ADD_RELU},
    "all": {"epilogue": GELU_RESIDUAL},
    "norm": {"norm": Norm("layer", CALM)},
    "rms of a sum": {"epilogue": ADD_RELU, "norm": Norm("rms", CALM, beta=False)},
    "the sum too": {"epilogue": ADD_RELU, "norm": Norm("layer", CALM), "keep_sum": True},
    "parts": {"parts": True},
}
BY_WEIGHT = {
    "layout": ("panels", "kn", "nk", "vnni2", "weight_only_bf16", "int16"),
    "m": ROWS,
    "n": (1, 15, 16, 17, 48, 49, 97, 400),
    "k": (1, 2, 3, 16, 33, 64, 300, 514, 5000),
    "post_ops": tuple(POST_OPS),
    "bias": (False, True),
    "batch": ((), (1,), (3,), (2, 2)),
}
BY_ACTIVATION = {
    "m": ROWS,
    "n": (1, 15, 16, 17, 48, 49, 97, 400),
    "k": (1, 2, 3, 16, 33, 64, 300, 1030),
    "outer": (((), ()), (("b",), ("b",)), (("b",), ()), (("b", 3), ("b", 3)), (("b", 3), ("b", 1)),
              ((1, 3), ("b", 1))),
    "turned": ("", "a", "b", "ab"),
    "post_ops": ("none", "silu", "residual"),
}  # fmt: skip


def by_weight(row: dict[str, Any]) -> Case:
    """One product with a matrix that is stored."""
    layout, m, n, k, batch = (row[name] for name in ("layout", "m", "n", "k", "batch"))
    k += layout == "weight_only_bf16" and k % 2
    more = dict(POST_OPS[row["post_ops"]])
    if more.pop("parts", False):
        more["splits"] = (n - n // 3, n // 3) if n > 2 else (n,)
    params = GemmParams(k, n, NAMED[layout], row["bias"], **more)
    weight = normal(k, n, seed=1) * np.float32(k**-0.5)
    scales = [pack_int16(weight)[1]] if layout == "int16" else []
    stored = {
        "panels": pack_panels, "kn": np.asarray, "nk": lambda w: np.ascontiguousarray(w.T),
        "vnni2": pack_vnni2, "weight_only_bf16": pack_vnni2, "int16": lambda w: pack_int16(w)[0],
    }[layout](weight)  # fmt: skip
    rows = ("b", *batch[1:], "m") if batch else ("m",)
    sizes = {"m": m, "b": batch[0] if batch else 1}
    kinds = params.epilogue.operands[1:] if params.epilogue else ()
    shapes = {"full": (*rows, n), "row": (n,), "col": (*rows, 1), "scalar": (1,)}
    affine = [(n,)] * (params.norm.operands if params.norm else 0)
    epilogue_inputs = [
        *([(n,)] if row["bias"] else []),
        *(shapes[kind] for kind in kinds),
        *affine,
    ]
    specs = [spec(*rows, k), spec(*stored.shape, dtype=TYPES.get(layout, DType.F32))]
    specs += [spec(*shape) for shape in epilogue_inputs] + [spec(len(s)) for s in scales]
    feeds = [normal(*(sizes.get(d, d) for d in (*rows, k)), seed=0), stored]  # type: ignore[misc, call-overload]
    for i, shape in enumerate(epilogue_inputs):
        feeds.append(normal(*(sizes.get(d, d) for d in shape), seed=2 + i))  # type: ignore[misc, call-overload]
    feeds += scales
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in feeds]
    if layout == "int16":
        wide[0] = feeds[0]  # rounded in float32, as the kernel does
    return operator_case(name_of(row), "FusedGemm", params, specs, feeds, wide)


NAMED = {layout.name: layout for layout in (PANELS, KN, NK, VNNI2, WEIGHT_ONLY_BF16, INT16)}
TYPES = {"vnni2": DType.BF16, "weight_only_bf16": DType.BF16, "int16": DType.I16}


def by_activation(row: dict[str, Any]) -> Case:
    """One product of two tensors, neither of which is packed ahead of time."""
    m, n, k, turned = (row[name] for name in ("m", "n", "k", "turned"))
    sizes = {"b": 2, "m": m, "n": n, "k": k}
    shapes, perms = [], []
    for which, outer, last in zip("ab", row["outer"], (("m", "k"), ("k", "n")), strict=True):
        turn = which in turned
        shapes.append((*outer, *(last[::-1] if turn else last)))
        rank = len(outer)
        perms.append((*range(rank), rank + 1, rank) if turn else ())
    epilogue = POST_OPS[row["post_ops"]].get("epilogue")
    params = MatMulParams(*perms, epilogue)
    if row["post_ops"] == "residual":
        (result,) = MatMulParams(*perms).infer([spec(*s) for s in shapes])
        shapes.append(result.shape or ())
    feeds = [normal(*(sizes.get(d, d) for d in s), seed=i) for i, s in enumerate(shapes)]  # type: ignore[misc, call-overload]
    feeds[1] *= np.float32(k**-0.5)
    specs = [spec(*shape) for shape in shapes]
    return operator_case(f"matmul_{name_of(row)}", "FusedMatMul", params, specs, feeds)


def name_of(row: dict[str, Any]) -> str:
    return "_".join(str(v).replace(" ", "").replace("'", "") for v in row.values())


def cases() -> Iterator[Case]:
    yield from map(by_weight, pairwise(BY_WEIGHT))
    yield from map(by_activation, pairwise(BY_ACTIVATION))


def in_few_bits(case: Case) -> bool:
    return case.name.startswith(tuple(TYPES))


@pytest.mark.parametrize("every_level", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_equals_reference(every_level: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = list(cases())
    for answers in by_precision(made, in_few_bits, tmp_path_factory, every_level=every_level):
        wrong = named_errors(answers, lambda case: case.tolerance)
        assert not wrong, "\n".join(wrong[:20])
        assert_threads_agree(answers)
