"""A decoder with GroupQueryAttention, as onnxruntime-genai's builder writes it: first prompts,
steps of items at places of their own, chunks, and caches that are their own results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tracea_graph import Options, Report, api

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]

WIDTH, HEADS, SHARED, SIZE, INNER, WORDS, LONGEST, LAYERS = 64, 4, 2, 32, 96, 50, 64, 2
Feeds = dict[str, np.ndarray]


class Decoder:
    """Collects nodes and weights of one decoder; ``attrs`` go to its attention."""

    def __init__(self, packed: bool, **attrs: Any) -> None:
        self.packed, self.attrs = packed, attrs
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def weight(self, name: str, *shape: int) -> str:
        draw = self.rng.standard_normal(shape) / np.sqrt(shape[0])
        self.weights[name] = draw.astype(np.float32)
        return name

    def gain(self, name: str) -> str:
        self.weights[name] = 1 + self.rng.standard_normal(WIDTH).astype(np.float32) / 10
        return name

    def __call__(self, op: str, inputs: list[str], *outputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], **attrs))
        return outputs[0]

    def lengths(self) -> None:
        """seqlens_k and total_sequence_length from the mask."""
        self.weights |= {"axis": np.array([1]), "second": np.array(1)}
        places = np.arange(LONGEST)[:, None] * 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
        self.weights |= {"cos": np.cos(places).astype(np.float32)}
        self.weights |= {"sin": np.sin(places).astype(np.float32)}
        self("ReduceSum", ["mask", "axis"], "counted", keepdims=0)
        self("Cast", [self("Sub", ["counted", "axis"], "less")], "seqlens", to=TensorProto.INT32)
        total = self("Gather", [self("Shape", ["mask"], "sizes"), "second"], "second_size", axis=0)
        self("Cast", [total], "total", to=TensorProto.INT32)

    def attention(self, x: str, layer: int) -> str:
        counts = {"q": HEADS, "k": SHARED, "v": SHARED}
        if self.packed:
            whole = self.weight(f"qkv{layer}", WIDTH, sum(counts.values()) * SIZE)
            qkv = [self("MatMul", [x, whole], f"x_qkv{layer}"), "", ""]
        else:
            sizes = {f"{c}{layer}": n * SIZE for c, n in counts.items()}
            qkv = [self("MatMul", [x, self.weight(c, WIDTH, n)], f"x_{c}")
                   for c, n in sizes.items()]  # fmt: skip
        caches = [f"past_{layer}_{c}" for c in "kv"]
        results = [f"heads{layer}", *(f"present_{layer}_{c}" for c in "kv")]
        self("GroupQueryAttention", [*qkv, *caches, "seqlens", "total", "cos", "sin"], *results,
             domain="com.microsoft", num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1,
             **self.attrs)  # fmt: skip
        out = self.weight(f"out{layer}", HEADS * SIZE, WIDTH)
        return self("MatMul", [results[0], out], f"attended{layer}")

    def added(self, x: str, y: str, name: str, last: bool = False) -> tuple[str, str]:
        """The norm of x + y, and x + y."""
        results = [name, *([] if last else ["", "", f"{name}_sum"])]
        self("SkipSimplifiedLayerNormalization", [x, y, self.gain(f"{name}_gain")], *results,
             domain="com.microsoft", epsilon=1e-5)  # fmt: skip
        return name, results[-1]

    def gated(self, x: str, layer: int) -> str:
        gate, up = (self("MatMul", [x, self.weight(f"{n}{layer}", WIDTH, INNER)], f"x_{n}{layer}")
                    for n in ("gate", "up"))  # fmt: skip
        act = self("Mul", [gate, self("Sigmoid", [gate], f"sigmoid{layer}")], f"silu{layer}")
        inner = self("Mul", [act, up], f"inner{layer}")
        return self("MatMul", [inner, self.weight(f"down{layer}", INNER, WIDTH)], f"mlp{layer}")

    def model(self) -> onnx.ModelProto:
        self.lengths()
        x = self("Gather", [self.weight("table", WORDS, WIDTH), "ids"], "embedded")
        y = self("SimplifiedLayerNormalization", [x, self.gain("first_gain")], "first",
                 axis=-1, epsilon=1e-5, stash_type=1)  # fmt: skip
        for i in range(LAYERS):
            y, x = self.added(x, self.attention(y, i), f"middle{i}")
            y, x = self.added(x, self.gated(y, i), f"end{i}", i == LAYERS - 1)
        self("MatMul", [y, self.weight("head", WIDTH, WORDS)], "logits")

        def info(name: str, *dims: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, dims)

        ids = [info("ids", "batch", "sequence", kind=TensorProto.INT64)]
        ids += [info("mask", "batch", "total_sequence", kind=TensorProto.INT64)]
        names = [f"{i}_{c}" for i in range(LAYERS) for c in "kv"]
        ids += [info(f"past_{n}", "batch", SHARED, "past_sequence", SIZE) for n in names]
        logits = [info("logits", "batch", "sequence", WORDS)]
        logits += [info(f"present_{n}", "batch", SHARED, "total_sequence", SIZE) for n in names]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, "decoder", ids, logits, weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


FORMS: Mapping[str, Decoder] = {
    "packed": Decoder(True),
    "apart, near and capped": Decoder(
        False, local_window_size=5, softcap=3.0, rotary_interleaved=1
    ),
}
Session = onnxruntime.InferenceSession


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder = tmp_path_factory.mktemp("decoder")
    for i, form in enumerate(FORMS.values()):
        onnx.save(form.model(), folder / f"decoder{i}.onnx")
    paths = [folder / f"decoder{i}.onnx" for i in range(len(FORMS))]
    outcomes = [*api.optimize_many(paths, Options(folder / "out", keep="all"))]
    assert all(o.report is not None for o in outcomes), [o.error for o in outcomes]
    return {name: o.report for name, o in zip(FORMS, outcomes, strict=True) if o.report}


def session(path: str, library: str | None = None) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if library:
        options.register_custom_ops_library(library)
    return Session(path, options)


@pytest.fixture(params=FORMS)
def three(request: pytest.FixtureRequest, reports: dict[str, Report]) -> tuple[Session, ...]:
    """The original, and the result with its library and on its bodies."""
    report = reports[request.param]
    return (
        session(report.input), session(report.output, report.library), session(report.output)
    )  # fmt: skip


def feeds(rows: int, held: int, lengths: tuple[int, ...], caches: Feeds | None = None) -> Feeds:
    """New rows of items that are then so long; random caches of ``held`` rows unless given."""
    rng = np.random.default_rng([rows, held])
    found: Feeds = {"ids": rng.integers(0, WORDS, (len(lengths), rows))}
    found["mask"] = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    for name in (f"past_{i}_{c}" for i in range(LAYERS) for c in "kv"):
        shape = len(lengths), SHARED, held, SIZE
        found[name] = rng.standard_normal(shape).astype(np.float32)
    return found | (caches or {})


def held_by(results: list[np.ndarray], rows: int) -> Feeds:
    """The caches a run gave, with room for more rows."""
    names = (f"past_{i}_{c}" for i in range(LAYERS) for c in "kv")
    room = ((0, 0), (0, 0), (0, rows), (0, 0))
    return {n: np.pad(a, room) for n, a in zip(names, results[1:], strict=True)}


def assert_alike(
    got: list[np.ndarray], want: list[np.ndarray], lengths: tuple[int, ...] = ()
) -> None:
    """Equal logits and caches; of a prompt only as far as items go: what is behind their
    lengths is anybody's numbers, and so is what later layers make of it."""
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape
        real = np.ones(a.shape[:2], bool)
        if lengths:
            real = np.arange(a.shape[2 if i else 1]) < np.array(lengths)[:, None]
        a, b = (x.swapaxes(1, 2) if i and lengths else x for x in (a, b))
        np.testing.assert_allclose(a[real], b[real], atol=2e-4)


def test_it_is_one_program(reports: dict[str, Report]) -> None:
    for report in reports.values():
        assert report.status == "passed", report.status_reason
        counts = [n.op_type.partition("_")[0] for n in onnx.load(report.output).graph.node]
        assert "GroupQueryAttention" not in counts and counts.count("FusedRegion") == 1
        assert not {"MatMul", "Mul", "RotaryEmbedding", "Concat"} & {*counts}


@pytest.mark.parametrize("lengths", [(6, 6), (6, 4)], ids=["alike", "padded"])
def test_a_prompt_and_steps_behind_it(
    three: tuple[Session, ...], lengths: tuple[int, ...]
) -> None:
    given = feeds(6, 0, lengths)
    original, *results = (s.run(None, given) for s in three)
    for got in results:
        assert_alike(got, original, lengths)
    for step in range(1, 4):
        longer = tuple(n + step for n in lengths)
        given = feeds(1, 0, longer, held_by(original, 0))
        original, *results = (s.run(None, given) for s in three)
        for got in results:
            assert_alike(got, original)


@pytest.mark.parametrize(
    ("rows", "held", "lengths"),
    [(1, 20, (9, 20, 1)), (4, 9, (13,)), (4, 30, (13,)), (7, 40, (7,)), (1, 1, (1,))],
    ids=["places of their own", "chunk", "chunk in a long cache", "prompt in one", "first row"],
)
def test_caches_of_any_length(
    three: tuple[Session, ...], rows: int, held: int, lengths: tuple[int, ...]
) -> None:
    original, *results = (s.run(None, feeds(rows, held, lengths)) for s in three)
    for got in results:
        assert_alike(got, original)


def in_place(session: Session, given: Feeds) -> list[np.ndarray]:
    """A run whose caches are their own results."""
    binding = session.io_binding()
    arrays = {name: array.copy() for name, array in given.items()}
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for result in session.get_outputs():
        past = result.name.replace("present", "past")
        if past in values:
            binding.bind_ortvalue_output(result.name, values[past])
        else:
            binding.bind_output(result.name)
    session.run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()]


def test_caches_that_are_their_own_results(three: tuple[Session, ...]) -> None:
    given = feeds(1, 16, (10, 4))
    original, result = (in_place(s, given) for s in three[:2])
    assert_alike(result, original)
    past = given["past_0_k"]
    np.testing.assert_array_equal(result[1][1, :, 4:], past[1, :, 4:])  # nothing else is written
    np.testing.assert_array_equal(result[1][1, :, :3], past[1, :, :3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda f: f | {"mask": np.zeros_like(f["mask"])}, "begins at row -1"),
        (lambda f: f | {"past_1_v": f["past_1_v"][:, :, :5]}, "must have 9 there"),
    ],
    ids=["no length", "another cache"],
)
def test_what_does_not_fit_is_an_error(
    three: tuple[Session, ...], wrong: Callable[[Feeds], Feeds], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        three[1].run(None, wrong(feeds(1, 9, (10, 4))))
