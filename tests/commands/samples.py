"""A result as the tool writes it, made by hand: no library, its custom op has a body."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tracea_graph.views.profile_record import MemoryRoof, Profile, ProfileRow, Roofs

DOMAIN = "tracea.0123456789"
ROOFS = Roofs(
    200.0,
    (MemoryRoof("L2", 1 << 20, 200.0), MemoryRoof("L3", 1 << 25, 100.0),
        MemoryRoof("DRAM", 0, 25.0)),
    "measured",
)  # fmt: skip


def result(folder: Path, named: bool = True) -> Path:
    """``Neg(FusedGemm(x, panels, bias))``, the body unpacking panels, then MatMul, Add and Relu.

    ``x [batch, 48]``, two panels ``[2, 48, 16]``: the result is ``[batch, 32]``.
    """
    name = "tracea_0_FusedGemm_ab" if named else ""
    call = helper.make_node("FusedGemm_ab", ["x", "panels", "bias"], ["h"], name, domain=DOMAIN)
    for key, value in (("tracea.nodes", "/a/MatMul\n/a/Relu"), ("tracea.rule", "gemm-chain")):
        call.metadata_props.add(key=key, value=value)
    shape = helper.make_node("Constant", [], ["t1"], value_ints=[48, -1])
    body = [
        helper.make_node("Transpose", ["w"], ["t0"], perm=[1, 0, 2]),
        shape,
        helper.make_node("Reshape", ["t0", "t1"], ["t2"]),
        helper.make_node("MatMul", ["x", "t2"], ["t3"]),
        helper.make_node("Add", ["t3", "b"], ["t4"]),
        helper.make_node("Relu", ["t4"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(DOMAIN, "FusedGemm_ab", ["x", "w", "b"], ["y"], body, opsets)
    big = helper.make_node("Constant", [], ["big"], value=_tensor("c", 40, 32))
    graph = helper.make_graph(
        [call, big, helper.make_node("Neg", ["h"], ["n"], "/neg")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 48])],
        [
            helper.make_tensor_value_info("n", TensorProto.FLOAT, ["batch", 32]),
            helper.make_tensor_value_info("big", TensorProto.FLOAT, [40, 32]),
        ],
        [_tensor("panels", 2, 48, 16), _tensor("bias", 32)],
    )
    model = helper.make_model(
        graph, opset_imports=[*opsets, helper.make_opsetid(DOMAIN, 1)], functions=[function]
    )
    model.ir_version = 8
    path = folder / "result.onnx"
    onnx.save(model, path)
    return path


def _tensor(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def profile(*rows: ProfileRow) -> Profile:
    """A profile of these rows."""
    ordered = tuple(sorted(rows, key=lambda r: -r.us))
    return Profile("m.onnx", "batch=1", 1, ordered, ROOFS, 1.0, 2.0)


def row(op: str = "FusedGemm_ab", us: float = 100.0, **fields: object) -> ProfileRow:
    """A row that computes 10 MFLOP on 1 MB."""
    known: dict[str, object] = {
        "flops": 1e7, "weights": 5e5, "activations": 5e5, "unfused": 2e6,
        "compute_us": 50.0, "memory_us": 30.0, "size": "8×32×48",
    }  # fmt: skip
    return ProfileRow(f"{op}_0", op, op.startswith("Fused"), us, **{**known, **fields})  # type: ignore[arg-type]
