"""Inputs obey what their uses ask for; bindings size every symbol."""

from __future__ import annotations

import numpy as np
import pytest

from tests.check.tiny_models import graph, model
from tests.graphs import Net, session
from tracea_graph.check.input_feeds import (
    Binding,
    choose_bindings,
    read_input_sets,
    synthesize_inputs,
)
from tracea_graph.errors import UsageError
from tracea_graph.ir import DType

TABLE = np.zeros((30, 4), np.float32)
PAIR = np.zeros((2, 4), np.float32)


def feed(text: str, symbols: dict[str, int] | None = None, *, padded: bool = False, **weights):
    made = graph(text, **weights)
    return synthesize_inputs(made, Binding("test", symbols or {}, padded), seed=1)


def accepted(text: str, feeds: dict[str, np.ndarray], **weights) -> list[np.ndarray]:
    """Outputs of ONNX Runtime, which raises if it refuses the feeds."""
    return session(model(text, **weights), optimized=True).run(None, feeds)


def test_gather_indices_stay_below_the_dim_they_index():
    text = "g (int64[2,50] a) => (float[2,50,4] y) { y = Gather(table, a) }"
    ids = feed(text, table=TABLE)["a"]
    assert ids.min() >= 0 and 20 < ids.max() < 30
    accepted(text, {"a": ids}, table=TABLE)


def test_indices_are_carried_back_through_cast_and_offset():
    text = """g (int32[90] a) => (float[90,4] y) {
        b = Cast<to=7>(a)  c = Add(b, two)  y = Gather(table, c) }"""
    ids = feed(text, table=TABLE, two=np.int64(2))["a"]
    assert ids.dtype == np.int32 and ids.min() >= 0 and ids.max() == 27


def test_gather_axis_and_narrowest_use_count():
    text = """g (int64[60] a) => (float[4,60] y, float[60,4] z) {
        y = Gather<axis=1>(table, a)  z = Gather(pair, a) }"""
    narrow = np.zeros((4, 30), np.float32)
    assert feed(text, table=narrow, pair=PAIR)["a"].max() == 1


@pytest.mark.parametrize(
    ("op", "operands", "limit"),
    [
        ("RoiAlign<sampling_ratio=1>", "image, boxes, i", 2),
        ("NegativeLogLikelihoodLoss", "logs, i", 5),
        ("SoftmaxCrossEntropyLoss", "logs, i", 5),
    ],
)
def test_indices_of_images_and_classes(op, operands, limit):
    kind = "float[40,1,1,1] y" if "Roi" in op else "float y"
    text = f"g (float[40,4] boxes, int64[40] i) => ({kind}) {{ y = {op}({operands}) }}"
    weights = {"image": np.zeros((2, 1, 8, 8), np.float32), "logs": np.zeros((40, 5), np.float32)}
    found = feed(text, **weights)
    assert {*range(limit)} >= {*found["i"].tolist()} and found["i"].max() == limit - 1
    accepted(text, found, **weights)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_positions_stay_below_the_length_of_the_tables(domain):
    net = Net(opset=23)
    x, positions = net.input("x", 3, 2, 5, 8), net.input("i", 3, 5, dtype=DType.I64)
    tables = [net.const(np.zeros((6, 4), np.float32)) for _ in range(2)]
    operands = [x, positions, *tables] if domain else [x, *tables, positions]
    made = net.graph(net("RotaryEmbedding", *operands, domain=domain))
    found = synthesize_inputs(made, Binding("test", {}), seed=1)
    assert found["i"].min() >= 0 and 2 < found["i"].max() < 6
    session(net.model, optimized=True).run(None, found)


def test_mask_by_name_is_ones_and_padded_hides_the_last_third_of_every_other_row():
    text = "g (int64[3,9] attention_mask) => (float[3,9] y) { y = Cast<to=1>(attention_mask) }"
    assert feed(text)["attention_mask"].all()
    padded = feed(text, padded=True)["attention_mask"]
    assert padded[0].tolist() == [1] * 6 + [0] * 3
    assert padded[1].all() and padded.any(axis=1).all()


def test_mask_of_one_token_keeps_it():
    text = "g (int64[2,1] attention_mask) => (float[2,1] y) { y = Cast<to=1>(attention_mask) }"
    assert feed(text, padded=True)["attention_mask"].all()


def test_mask_is_known_by_its_use():
    text = """g (int64[2,6] m) => (float[2,6] y) {
        f = Cast<to=1>(m)  i = Sub(one, f)  y = Mul(i, low) }"""
    low, one = np.float32(-1e4), np.float32(1)
    padded = feed(text, padded=True, low=low, one=one)["m"]
    assert padded.tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]


def test_inverted_masks_keep_with_zero():
    where = """g (bool[2,6] m, float[2,6] s) => (float[2,6] y) {
        t = Where(m, low, s)  y = Softmax(t) }"""
    low = np.float32(-np.inf)
    assert not feed(where, low=low)["m"].any()
    times = "g (int64[2,6] m) => (float[2,6] y) { f = Cast<to=1>(m)  y = Mul(f, low) }"
    assert not feed(times, low=np.float32(-1e9))["m"].any()


@pytest.mark.parametrize("low", [-1e4, -np.inf])
def test_padding_of_both_sides_of_a_score_hides_nothing(low):
    """NeMo's Conformer: a score is kept if neither its query nor its key is padding."""
    text = """g (bool[2,6] pad, float[2,6,6] s) => (float[2,6,6] y) {
        k = Not(pad)  a = Unsqueeze(k, one)  b = Unsqueeze(k, two)  c = And(a, b)
        drop = Not(c)  t = Where(drop, low, s)  y = Softmax(t) }"""
    sides = {"one": np.array([1]), "two": np.array([2]), "low": np.float32(low)}
    assert not feed(text, **sides)["pad"].any()
    padded = feed(text, padded=True, **sides)["pad"]
    assert padded.tolist() == [[False] * 4 + [True] * 2, [False] * 6]


def test_boolean_mask_keeps_with_true():
    text = """g (bool[2,6] m, float[2,6] s) => (float[2,6] y) {
        t = Where(m, s, low)  y = Softmax(t) }"""
    low = np.float32(-np.inf)
    assert feed(text, low=low)["m"].all()
    padded = feed(text, padded=True, low=low)
    assert not padded["m"].all()
    assert np.isfinite(accepted(text, padded, low=low)[0]).all()


def test_additive_float_mask():
    text = """g (float[2,3] attn_mask, float[2,3] s) => (float[2,3] y) {
        t = Add(s, attn_mask)  y = Softmax(t) }"""
    assert not feed(text)["attn_mask"].any()
    assert feed(text, padded=True)["attn_mask"].tolist() == [[0, 0, -1e4], [0, 0, 0]]


def test_token_ids_compared_with_a_pad_id_are_still_ids():
    text = """g (int64[4,40] input_ids) => (float[4,40,4] y, bool[4,40] p) {
        y = Gather(table, input_ids)  e = Equal(input_ids, pad)  p = Not(e) }"""
    assert feed(text, table=TABLE, pad=np.int64(1))["input_ids"].max() > 20


def test_position_ids_ascend_and_start_behind_the_cache():
    text = """g (int64[1,5] position_ids, float[1,past_len] c) => (float[1,5,4] y, float z) {
        y = Gather(table, position_ids)  z = ReduceSum(c) }"""
    ids = feed(text, {"past_len": 3}, table=TABLE)["position_ids"]
    assert ids.tolist() == [[3, 4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("g (float[2,6] x, int64[2] s) => (float[3,4] y) { y = Reshape(x, s) }", "s", [3, 4]),
        ("g (float[1,6] x, int64[2] s) => (float[5,6] y) { y = Expand(x, s) }", "s", [5, 6]),
        ("g (float[2,3] x, int64[2] r) => (float[4,9] y) { y = Tile(x, r) }", "r", [2, 3]),
        ("g (int64 n) => (int64[6] y) { y = Range(zero, n, one) }", "n", 6),
        ("g (int64[2] s) => (float[7,2] y) { y = ConstantOfShape(s) }", "s", [7, 2]),
    ],
)
def test_sizes_are_solved(text, name, wanted):
    weights = {"zero": np.int64(0), "one": np.int64(1)} if "Range" in text else {}
    found = feed(text, **weights)
    assert found[name].tolist() == wanted
    accepted(text, found, **weights)


def test_sizes_are_solved_piecewise_through_concat_and_arithmetic():
    text = """g (float[2,6] x, int64 n) => (float[a,4] y) {
        u = Unsqueeze(n, zero)  h = Mul(u, two)
        s = Concat<axis=0>(minus, h)  y = Reshape(x, s) }"""
    weights = {
        "zero": np.array([0], np.int64),
        "two": np.array([2], np.int64),
        "minus": np.array([-1], np.int64),
    }
    found = feed(text, **weights)
    assert found["n"] == 2
    assert accepted(text, found, **weights)[0].shape == (3, 4)


def test_reshape_to_unknown_dims_is_always_legal():
    text = "g (float[2,6] x, int64[3] s) => (float[a,b,c] y) { y = Reshape(x, s) }"
    accepted(text, feed(text))


def test_slice_bounds_keep_everything():
    text = """g (float[5,6] x, int64[2] a, int64[2] b) => (float[i,j] y) { y = Slice(x, a, b) }"""
    found = feed(text)
    assert accepted(text, found)[0].shape == (5, 6)


SLICE = "{y} = Slice(x, zero, k, one)"
RESHAPE = "e = Concat<axis=0>(five, k)  {y} = Reshape(x, e)"
TOP_K = "{y}, i = TopK<axis=1>(x, k)"
GATHER = "{y} = Gather<axis=1>(x, k)"
GATHER_BEHIND = "g = Add(k, three)  {y} = Gather<axis=1>(x, g)"
GATHER_THIRD = "g = Mul(k, three)  {y} = Gather<axis=1>(x, g)"


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (SLICE, TOP_K, 6),
        (TOP_K, SLICE, 1),
        (SLICE, GATHER, 5),
        (TOP_K, GATHER_BEHIND, 1),
        (TOP_K, RESHAPE, 6),
        (RESHAPE, TOP_K, 6),
        (SLICE, GATHER_THIRD, 1),
    ],
)
def test_an_input_with_two_roles_fits_both(first, second, wanted):
    dims = ["5,6" if one is RESHAPE else f"r{i},c{i}" for i, one in enumerate((first, second))]
    text = f"""g (float[5,6] x, int64[1] k) => (float[{dims[0]}] a, float[{dims[1]}] b) {{
        {first.format(y="a")}  {second.format(y="b")} }}"""
    numbers = (("zero", 0), ("one", 1), ("five", 5), ("three", 3))
    weights = {name: np.array([number]) for name, number in numbers}
    found = feed(text, **weights)
    assert found["k"].tolist() == [wanted]
    accepted(text, found, **weights)


def test_scalar_named_like_a_dim_has_its_size():
    text = "g (float[N] x, int64 N) => (float[N] y, int64 z) { y = Relu(x)  z = Identity(N) }"
    found = feed(text, {"N": 16})
    assert found["N"] == 16 and found["x"].shape == (16,)


def test_floats_are_normal_and_images_in_the_unit_interval():
    text = """g (float[1,3,32,32] x, float[64,64] z) => (float[1,3,32,32] y, float[64,64] w) {
        y = Relu(x)  w = Relu(z) }"""
    found = feed(text)
    assert found["x"].min() >= 0.0 and found["x"].max() < 1.0
    assert found["z"].min() < -1.0 < 1.0 < found["z"].max()


def test_divisors_and_roots_get_positive_numbers():
    text = """g (int64[50] a, float[50] b, int64[50] c) => (int64[50] y, float[50] z) {
        y = Div(c, a)  z = Sqrt(b) }"""
    found = feed(text)
    assert found["a"].min() >= 1 and found["b"].min() > 0.0


def test_strings_and_small_types():
    text = """g (string[3] s, float16[3] h, bfloat16[3] b, uint8[99] u) =>
        (string[3] y, float16[3] z, bfloat16[3] c, uint8[99] v) {
        y = Identity(s)  z = Identity(h)  c = Identity(b)  v = Identity(u) }"""
    found = feed(text)
    assert found["s"].dtype == object and isinstance(found["s"][0], str)
    assert found["h"].dtype == np.float16 and found["b"].dtype.name == "bfloat16"
    assert found["u"].max() > 127


def test_same_seed_same_feeds_other_seed_other_feeds():
    made = graph("g (float[8] x) => (float[8] y) { y = Relu(x) }")
    a, b, c = (synthesize_inputs(made, Binding("b", {}), seed)["x"] for seed in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


# ---- bindings --------------------------------------------------------------------------

TEXT = """g (int64[batch,seq_len] ids, float[batch,heads,past_len,4] kv,
       int64[batch,total_len] attention_mask)
    => (int64[batch,seq_len] y, float[batch,heads,past_len,4] k, int64[batch,total_len] m) {
    y = Identity(ids)  k = Identity(kv)  m = Identity(attention_mask) }"""


def test_default_bindings():
    timed, verified = choose_bindings(graph(TEXT))
    assert [dict(b.symbols) for b in timed] == [
        {"batch": 1, "seq_len": 128, "heads": 16, "past_len": 128, "total_len": 256}
    ]
    assert [b.padded for b in verified] == [False, False, True]
    assert set(verified[1].symbols.values()) == {1, 2}, "total is past + sequence"
    assert verified[2].symbols["batch"] == 3 and verified[2].symbols["seq_len"] == 13
    assert timed[0].label == "batch=1 seq_len=128 heads=16 past_len=128 total_len=256"


def test_a_mask_beside_a_cache_covers_it_and_the_new_tokens():
    text = TEXT.replace("past_len,4", "p,8").replace("total_len", "t")
    (timed,), verified = choose_bindings(graph(text))
    assert timed.symbols["p"] == 128 and timed.symbols["t"] == 256
    assert verified[2].symbols["t"] == 13 + 7
    (alone,), _ = choose_bindings(graph(text.replace("p,8", "p,t")))
    assert alone.symbols["t"] == 128, "it is not the mask's alone"


def test_items_of_a_cache_get_one_row_each_at_places_of_their_own():
    net = Net()
    sizes = {"q": ("seq", 64), "k": ("seq", 32), "v": ("seq", 32)}
    qkv = [net.input(name, "batch", *dims) for name, dims in sizes.items()]
    past = [net.input(f"past_{x}", "batch", 2, "past", 16) for x in "kv"]
    lengths = net.input("lengths", "batch", dtype=DType.I32)
    total = net.input("total", dtype=DType.I32)
    mask = net("Identity", net.ids("mask", "batch", "total_sequence"))
    y = net.many("GroupQueryAttention", 3, *qkv, *past, lengths, total,
                 domain="com.microsoft", num_heads=4, kv_num_heads=2)  # fmt: skip
    made = net.graph(*y, mask)
    _, verified = choose_bindings(made)
    last = verified[-1]
    assert last.padded and last.symbols == {"batch": 3, "seq": 1, "past": 7, "total_sequence": 8}
    fed = synthesize_inputs(made, last)
    assert fed["total"] == 8 and (fed["lengths"] == 7).all()
    net.run(fed)


def test_given_shapes_are_timed_and_verified():
    timed, verified = choose_bindings(graph(TEXT), [{"seq_len": 7}, {"batch": 4}])
    assert [(b.symbols["batch"], b.symbols["seq_len"]) for b in timed] == [(1, 7), (4, 128)]
    assert timed[0].symbols["total_len"] == 135
    assert [b.label for b in verified[:2]] == [b.label for b in timed] and len(verified) == 4


def test_an_unknown_symbol_is_a_usage_error_naming_the_known():
    with pytest.raises(UsageError, match=r"no dim 'width'.*batch, heads, past_len"):
        choose_bindings(graph(TEXT), [{"width": 7}])
    with pytest.raises(UsageError, match=r"no dim 'sequence'; did you mean seq_len\?"):
        choose_bindings(graph(TEXT), [{"sequence": 7}])


def test_fixed_model_is_verified_plain_and_padded():
    timed, verified = choose_bindings(graph("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"))
    assert [b.label for b in timed] == ["fixed"]
    assert [b.padded for b in verified] == [False, True]


def test_image_and_pinned_dims():
    made = graph(
        "g (float[N,C,H,W] x, float[M,K] a) => (float[N,8,H,W] y, float[M,4] z) "
        "{ y = Conv<pads=[1,1,1,1]>(x, w)  z = MatMul(a, v) }",
        w=np.zeros((8, 3, 3, 3), np.float32),
        v=np.zeros((30, 4), np.float32),
    )
    (timed,), _ = choose_bindings(made)
    assert timed.symbols == {"N": 1, "C": 3, "H": 224, "W": 224, "M": 1, "K": 30}


def test_a_waveform_of_n_samples_is_no_batch():
    made = graph("g (float[batch_size,N] x) => (float[batch_size,N] y) { y = Relu(x) }")
    (timed,), _ = choose_bindings(made)
    assert timed.symbols == {"batch_size": 1, "N": 512}


def test_a_recording_is_a_second_long():
    made = graph("g (float[1,num_samples] x) => (float[1,num_samples] y) { y = Relu(x) }")
    (timed,), _ = choose_bindings(made)
    assert timed.symbols == {"num_samples": 16_000}
    table = graph("g (float[n_samples,K] x) => (float[n_samples,K] y) { y = Relu(x) }")
    (timed,), _ = choose_bindings(table)
    assert timed.symbols == {"n_samples": 1, "K": 16}
    spectrum = graph("g (float[B,80,audio_len] x) => (float[B,80,audio_len] y) { y = Relu(x) }")
    (timed,), _ = choose_bindings(spectrum)
    assert timed.symbols == {"B": 1, "audio_len": 128}


def test_inputs_with_a_default_need_no_value():
    made = graph(TEXT)
    (timed,), _ = choose_bindings(made, inputs=["ids"])
    assert set(timed.symbols) == {"batch", "seq_len"}
    assert set(synthesize_inputs(made, timed, inputs=["ids"])) == {"ids"}


# ---- files -----------------------------------------------------------------------------

SUM = "g (float[2,k] a, int64[2] b) => (float[2,k] y, int64[2] z) { y = Relu(a)  z = Identity(b) }"


def test_file_with_one_set(tmp_path):
    np.savez(tmp_path / "d.npz", a=np.ones((2, 5)), b=np.arange(2, dtype=np.int32))
    (found,) = read_input_sets(tmp_path / "d.npz", graph(SUM))
    assert found["a"].dtype == np.float32 and found["b"].dtype == np.int64


def test_file_with_several_sets(tmp_path):
    np.savez(tmp_path / "d.npz", a=np.ones((3, 2, 5), "f4"), b=np.arange(6).reshape(3, 2))
    found = read_input_sets(tmp_path / "d.npz", graph(SUM))
    assert [f["b"].tolist() for f in found] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones((2, 5))}, "missing: b"),
        ({"a": np.ones((2, 5)), "b": np.arange(2), "c": np.ones(1)}, "unknown: c"),
        ({"a": np.ones((3, 5)), "b": np.arange(2)}, "has dims"),
        ({"a": np.ones((2, 5)), "b": np.ones(2)}, "is float64; the model takes"),
        ({"a": np.ones((3, 2, 5)), "b": np.ones((4, 2))}, "different numbers of samples"),
    ],
)
def test_file_that_does_not_fit(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        read_input_sets(tmp_path / "d.npz", graph(SUM))


def test_unreadable_file(tmp_path):
    (tmp_path / "d.npz").write_bytes(b"no zip")
    for path in (tmp_path / "d.npz", tmp_path / "absent.npz"):
        with pytest.raises(UsageError, match="cannot read input data"):
            read_input_sets(path, graph(SUM))
