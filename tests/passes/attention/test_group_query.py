"""GroupQueryAttention: every form computes what ONNX Runtime does, or says why it stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import (
    Net,
    assert_same,
    evaluate,
    normal,
    only,
    ops,
    optimized,
    reasons,
    relative_error,
    schedule_only,
)
from tracea_graph import load
from tracea_graph.ir import DType
from tracea_graph.passes.attention.attention_op import AttentionOp
from tracea_graph.ttg import TileGraph

H, G, D, LONGEST = 4, 2, 32, 64
BATCH, SEQ, PAST = "batch", "seq", "past"
KINDS: dict[int, npt.DTypeLike] = {
    DType.F16.onnx: np.float16, DType.BF16.onnx: ml_dtypes.bfloat16, DType.I8.onnx: np.int8,
}  # fmt: skip
"""Types of caches that are not float32, by their codes."""


def grouped(
    net: Net,
    packed: bool = False,
    past: bool = True,
    rotated: int = 0,
    ids: bool = False,
    cache: Any = PAST,
    name: str = "y",
    lengths: tuple[str, str] | None = None,
    bias: tuple[Any, ...] = (),
    half: str = "",
    scales: tuple[Any, Any] | None = None,
    **attrs: Any,
) -> tuple[str, ...]:
    """The operator over inputs of the net; ``rotated``: columns of a head its tables turn.

    ``half`` says what is in fp16: the ``caches``, or ``all`` numbers.  With ``scales`` of keys and
    values, caches are int8.
    """
    kind = {"dtype": DType.F16} if half == "all" else {}
    held = {"dtype": DType.I8} if scales else {"dtype": DType.F16} if half else {}
    if packed:
        qkv = [net.input(f"{name}_x", BATCH, SEQ, (H + 2 * G) * D, **kind), "", ""]
    else:
        sizes = zip("qkv", (H, G, G), strict=True)
        qkv = [net.input(f"{name}_{x}", BATCH, SEQ, n * D, **kind) for x, n in sizes]
    caches = ["", ""]
    if past:
        caches = [net.input(f"{name}_past_{x}", BATCH, G, cache, D, **held) for x in "kv"]
    lengths = lengths or (
        net.input("seqlens", BATCH, dtype=DType.I32), net.input("total", dtype=DType.I32)
    )  # fmt: skip
    tables = [net.weight(LONGEST, rotated // 2) for _ in range(2)] if rotated else []
    if half == "all":
        tables = [net("Cast", t, to=DType.F16.onnx) for t in tables]
    tables += ["", ""] * (ids and not rotated)
    positions = [net.ids("ids", BATCH, SEQ)] if ids else []
    if bias:
        tables += ["", ""] * (not rotated and not ids)
        positions = [*(positions or [""]), net.input("bias", *bias, SEQ, "every", **kind)]
    attrs |= {"do_rotary": 1} if rotated else {}
    operands = [*qkv, *caches, *lengths, *tables, *positions]
    if scales:
        operands += [*[""] * (12 - len(operands)), *map(net.const, scales)]
        kinds = ["PER_TENSOR" if np.size(s) == 1 else "PER_CHANNEL" for s in scales]
        attrs = {
            "k_quant_type": kinds[0],
            "v_quant_type": kinds[1],
            "kv_cache_bit_width": 8,
        } | attrs
    return net.many(
        "GroupQueryAttention", 3, *operands, name=name,
        domain="com.microsoft", num_heads=H, kv_num_heads=G, **attrs,
    )  # fmt: skip


def feeds(net: Net, lengths: tuple[int, ...], total: int, rows: int, held: int) -> dict[str, Any]:
    """``lengths`` of the items with their ``rows`` new rows; caches of ``held``."""
    sizes = {BATCH: len(lengths), SEQ: rows, PAST: held, "every": total}
    found: dict[str, Any] = {}
    for i, (name, info) in enumerate(net.inputs.items()):
        dims = [d.dim_value or sizes[d.dim_param] for d in info.type.tensor_type.shape.dim]
        code = info.type.tensor_type.elem_type
        found[name] = normal(*dims, seed=i).astype(KINDS.get(code, np.float32))
        if code == DType.I8.onnx:
            found[name] = np.random.default_rng(i).integers(-128, 128, dims, np.int8)
    found["seqlens"] = np.array(lengths, np.int32) - 1
    found["total"] = np.array(total, np.int32)
    return found


def lifted(net: Net, results: tuple[str, ...]) -> TileGraph:
    graph = net.graph(*results)
    trace = schedule_only(graph, AttentionOp())
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    graph.check()
    return graph


STEPS = {
    "a prompt": ((5, 5), 5, 5, 0),
    "a prompt in a long cache": ((5, 5), 5, 5, 12),
    "one row each": ((7, 7), 7, 1, 6),
    "one row each, at places of their own": ((7, 4), 7, 1, 6),
    "one row each in a long cache": ((7, 3), 7, 1, 12),
    "the first row of all": ((1, 1), 1, 1, 0),
    "a chunk": ((9,), 9, 3, 6),
    "a chunk in a long cache": ((9,), 9, 3, 20),
    "a chunk that is not all of it": ((8,), 9, 3, 6),
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"packed": True},
    "rotated": {"rotated": D},
    "rotated in part, packed": {"rotated": D // 2, "packed": True},
    "rotated by pairs": {"rotated": D, "rotary_interleaved": 1},
    "near, capped and scaled": {"local_window_size": 3, "softcap": 2.0, "scale": 0.3},
    "near, rotated": {"local_window_size": 4, "rotated": D},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", STEPS)
def test_every_form_at_every_step(form: str, step: str) -> None:
    net = Net()
    graph = lifted(net, grouped(net, **FORMS[form]))
    assert_same(net, graph, feeds(net, *STEPS[step]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("half", ["caches", "all"])
def test_caches_in_fp16(half: str, form: str, step: str) -> None:
    """ONNX Runtime multiplies by them in fp16, which is up to 3e-4 of max|y| from float32."""
    net = Net()
    results = grouped(net, half=half, **FORMS[form])
    graph = lifted(net, results)
    assert graph.spec(results[1]).dtype is DType.F16
    assert_same(net, graph, feeds(net, *STEPS[step]), limit=3e-3)


SCALES = {
    "one scale": (np.array([0.02], np.float32), np.array([0.03], np.float32)),
    "a scale for each column": tuple(
        np.random.default_rng(i).uniform(0.01, 0.03, (1, G, 1, D)).astype(np.float32)
        for i in range(2)
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("half", ["", "all"])
def test_caches_in_int8(half: str, scales: str, form: str, step: str) -> None:
    """New rows are those of ONNX Runtime, but for products of a rotation in another order."""
    net = Net()
    results = grouped(net, half=half, scales=SCALES[scales], **FORMS[form])
    graph = lifted(net, results)
    assert graph.spec(results[1]).dtype is DType.I8
    given = feeds(net, *STEPS[step])
    found, want = [np.asarray(y) for y in evaluate(graph, given)], net.run(given)
    assert relative_error(found[0], want[0]) < (5e-3 if half else 1e-4)
    for own, theirs in zip(found[1:], want[1:], strict=True):
        apart = np.abs(own.astype(int) - theirs)
        assert apart.max() <= 1 and (apart > 0).mean() < (5e-2 if half else 2e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scales": (np.array([0.0]), np.array([0.1]))},
         "a scale of its caches is zero, negative, infinite or no number"),
        ({"scales": (np.array([0.1]), np.array([np.nan]))},
         "a scale of its caches is zero, negative, infinite or no number"),
        ({"scales": (np.ones(D), np.ones(D))}, f"its caches have {D} scales instead of {G * D}"),
        ({"scales": SCALES["one scale"], "kv_cache_bit_width": 4},
         "its caches hold integers of 4 bits"),
        ({"scales": SCALES["one scale"], "k_quant_type": "NONE", "v_quant_type": "NONE"},
         "it has scales of a cache that is not quantized"),
        ({"scales": SCALES["one scale"], "k_quant_type": "NONE"},
         "its keys and values do not both have constant scales"),
        ({"scales": SCALES["one scale"], "past": False},
         "its caches are quantized, but not of int8"),
    ],
)  # fmt: skip
def test_quantized_caches_that_are_not_supported_say_why(
    change: dict[str, Any], reason: str
) -> None:
    net = Net()
    graph = net.graph(*grouped(net, **change))
    assert reasons(schedule_only(graph, AttentionOp()), "attention-op") == {reason}


def test_integers_without_a_scale_say_why() -> None:
    net = Net()
    results = grouped(net, scales=SCALES["one scale"], k_quant_type="NONE", v_quant_type="NONE")
    del net.nodes[0].input[12:]
    trace = schedule_only(net.graph(*results), AttentionOp())
    assert reasons(trace, "attention-op") == {"its caches are int8, but not quantized"}


@pytest.mark.parametrize("form", FORMS)
def test_caches_in_bf16_are_read_instead_of_their_casts(form: str) -> None:
    """What import makes of an operator in bf16: the operator in float32, with casts around it."""
    net = Net()
    wide = grouped(net, **FORMS[form])
    node = net.nodes.pop()
    for i in (3, 4):
        net.inputs[node.input[i]].type.tensor_type.elem_type = DType.BF16.onnx
        node.input[i] = net("Cast", node.input[i], to=DType.F32.onnx)
    net.nodes.append(node)
    results = (wide[0], *(net("Cast", v, to=DType.BF16.onnx) for v in wide[1:]))
    graph = lifted(net, results)
    assert graph.spec(results[1]).dtype is DType.BF16
    assert "y_1" not in graph.specs or not graph.uses("y_1")
    assert all(graph.spec(r.operands[0]).dtype is not DType.BF16 or not graph.uses(r.results[0])
               for r in graph.regions() if r.op == "Cast")  # fmt: skip
    given = feeds(net, *STEPS["one row each in a long cache"])
    plain = Net()
    plain.graph(*grouped(plain, **FORMS[form]))
    want = plain.run(
        {v: a.astype(a.dtype if a.dtype.kind == "i" else np.float32) for v, a in given.items()}
    )
    for actual, expected in zip(evaluate(graph, given), want, strict=True):
        assert relative_error(np.asarray(actual), expected) < 1e-2


@pytest.mark.parametrize("form", ["plain", "rotated in part, packed", "capped", "near, rotated"])
@pytest.mark.parametrize("bias", [(1, 1), (BATCH, 1), (1, H), (BATCH, H)])
@pytest.mark.parametrize("step", STEPS)
def test_a_bias_of_scores(form: str, bias: tuple[Any, ...], step: str) -> None:
    net = Net()
    attrs = FORMS.get(form, {"softcap": 2.0})
    graph = lifted(net, grouped(net, **attrs, bias=bias))
    given = feeds(net, *STEPS[step])
    given["bias"] = given["bias"] * 3
    assert_same(net, graph, given)


def test_a_prompt_without_a_cache() -> None:
    net = Net()
    graph = lifted(net, grouped(net, past=False, rotated=D))
    assert_same(net, graph, feeds(net, (5, 5), 5, 5, 0))


def test_rows_behind_an_items_length_are_all_that_differs() -> None:
    net = Net()
    graph = lifted(net, grouped(net, rotated=D))
    given = feeds(net, (5, 3), 5, 5, 0)
    got, want = evaluate(graph, given), net.run(given)
    np.testing.assert_allclose(got[0][0], want[0][0], atol=1e-5)
    np.testing.assert_allclose(got[0][1, :3], want[0][1, :3], atol=1e-5)
    assert np.isfinite(got[0]).all()
    for a, b in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("ids", "step"), [([[9], [4]], "one row each"), ([[5, 1, 2, 3, 0]] * 2, "a prompt")]
)
def test_position_ids_that_are_given(ids: list[list[int]], step: str) -> None:
    """Of a prompt the kernel reads the first one only."""
    net = Net()
    graph = lifted(net, grouped(net, rotated=D, ids=True))
    assert_same(net, graph, feeds(net, *STEPS[step]) | {"ids": np.array(ids)})


def decoder(net: Net, layers: int = 2) -> tuple[str, ...]:
    """Products around the operator; lengths from a mask, as exporters write them."""
    mask = net.ids("attention_mask", BATCH, "total")
    total = net("Gather", net("Shape", mask), net.const(1, np.int64), axis=0)
    counted = net("ReduceSum", mask, net.ints(1), keepdims=0)
    seqlens = net("Cast", net("Sub", counted, net.ints(1)), to=DType.I32.onnx)
    lengths = seqlens, net("Cast", total, to=DType.I32.onnx)
    x = net.input("x", BATCH, SEQ, 32)
    tables = [net.weight(LONGEST, D // 2) for _ in range(2)]
    presents: list[str] = []
    for layer in range(layers):
        qkv = [net("MatMul", x, net.const(normal(32, n * D, seed=layer + n) / 6))
               for n in (H, G, G)]  # fmt: skip
        past = [net.input(f"past_{layer}_{c}", BATCH, G, PAST, D) for c in "kv"]
        y, *present = net.many(
            "GroupQueryAttention", 3, *qkv, *past, *lengths, *tables, name=f"y{layer}",
            domain="com.microsoft", num_heads=H, kv_num_heads=G, do_rotary=1,
        )  # fmt: skip
        presents += present
        x = net("Add", x, net("MatMul", y, net.const(normal(H * D, 32, seed=7 + layer) / 8)))
    return (x, *presents)


@pytest.mark.parametrize(
    ("batch", "rows", "held"), [(2, 6, 0), (2, 1, 9), (1, 4, 9)], ids=["prompt", "step", "chunk"]
)
def test_a_decoder_computes_places_once_and_is_one_program(
    batch: int, rows: int, held: int, tmp_path: Path
) -> None:
    net = Net()
    net.save(tmp_path / "decoder.onnx", *decoder(net))
    graph = load(tmp_path / "decoder.onnx")
    trace = optimized(graph)
    assert trace.applied()["attention-op"] == 2, trace.misses()
    assert sum(r.op == "FusedRegion" for r in graph.regions()) == 1
    words = {type(s.params).__name__ for s in only(graph, "FusedRegion").params.steps}
    assert {"AttentionParams", "KvCacheAppendParams", "ConcatParams", "GemmParams"} <= words
    assert ops(graph).count("Range") == 1 and ops(graph).count("ConstantOfShape") == 1
    given: dict[str, Any] = {"attention_mask": np.ones((batch, held + rows), np.int64)}
    if held and batch > 1:
        given["attention_mask"][1, 6:] = 0
    sizes = {BATCH: batch, SEQ: rows, PAST: held}
    for i, (name, info) in enumerate(net.inputs.items()):
        dims = [d.dim_value or sizes.get(d.dim_param, 0) for d in info.type.tensor_type.shape.dim]
        if name not in given:
            given[name] = normal(*dims, seed=i)
    assert_same(net, graph, given)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"smooth_softmax": 1}, "its smooth_softmax is 1"),
        ({"local_window_size": 0}, "its window of 0 keys is not supported"),
        ({"rotated": 16, "rotary_interleaved": 1},
         "it rotates only a part of each head in interleaved pairs"),
        ({"bias": (1, 3)}, "its attention bias does not broadcast over its heads"),
        ({"cache": "held"}, ""),
    ],
)  # fmt: skip
def test_what_is_not_modelled_says_why(attrs: dict[str, Any], reason: str) -> None:
    net = Net()
    graph = net.graph(*grouped(net, **attrs))
    trace = schedule_only(graph, AttentionOp())
    assert reasons(trace, "attention-op") == ({reason} if reason else set())


@pytest.mark.parametrize(
    ("operand", "reason"),
    [
        (11, "it has a head_sink"),
        (12, "it has scales of a cache that is not quantized"),
        (14, "it has a q_norm_weight"),
    ],
)
def test_operands_that_are_not_modelled_say_why(operand: int, reason: str) -> None:
    net = Net()
    grouped(net)
    node = net.nodes[0]
    node.input.extend([""] * (operand - len(node.input)) + [net.input("more", H)])
    graph = net.graph(*node.output)
    assert reasons(schedule_only(graph, AttentionOp()), "attention-op") == {reason}
