"""Sizes under windows, grids and selections, proved symbolic and held against ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper

from models.make import make
from tests.onnx_io.samples import BOOL, I64, model, node, read, run, tensor, value
from tracea_graph.ir import evaluate
from tracea_graph.onnx_io import load

IMAGE, ROWS = ["b", 4, "h", "w"], ["b", "s", 12]


def ints(name: str, *numbers: int) -> Any:
    return tensor(name, list(numbers), np.int64)


def w(*shape: int) -> Any:
    return tensor("k", np.ones(shape))


Case = tuple[Sequence[str | int], list[NodeProto], list[Any], str, int]

CASES: dict[str, Case] = {
    "conv same": (IMAGE, [node("Conv", "x k", "y", pads=[1] * 4)], [w(8, 4, 3, 3)],
                  "f32[b,8,h,w]", 17),
    "conv stride": (IMAGE, [node("Conv", "x k", "y", pads=[1] * 4, strides=[2, 2])],
                    [w(8, 4, 3, 3)], "f32[b,8,((h+1)//2),((w+1)//2)]", 17),
    "conv dilated": (IMAGE, [node("Conv", "x k", "y", dilations=[2, 1], strides=[3, 1])],
                     [w(8, 4, 3, 1)], "f32[b,8,(((h+1)//3)-1),w]", 17),
    "conv auto_pad": (IMAGE, [node("Conv", "x k", "y", auto_pad="SAME_UPPER", strides=[2, 2])],
                      [w(8, 4, 3, 3)], "f32[b,8,((h+1)//2),((w+1)//2)]", 17),
    "conv valid": (IMAGE, [node("Conv", "x k", "y", auto_pad="VALID")], [w(8, 4, 3, 3)],
                   "f32[b,8,(h-2),(w-2)]", 17),
    "conv transpose": (IMAGE, [node("ConvTranspose", "x k", "y", strides=[2, 2], group=2,
                                    pads=[1, 1, 1, 1], output_padding=[1, 1])],
                       [w(4, 3, 3, 3)], "f32[b,6,(h*2),(w*2)]", 17),
    "conv transpose same": (IMAGE, [node("ConvTranspose", "x k", "y", strides=[2, 2],
                                         auto_pad="SAME_LOWER")], [w(4, 3, 3, 3)],
                            "f32[b,3,(h*2),(w*2)]", 17),
    "max pool": (IMAGE, [node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2])], [],
                 "f32[b,4,(h//2),(w//2)]", 17),
    "max pool up": (IMAGE, [node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2],
                                 ceil_mode=1)], [], "f32[b,4,(h//2),(w//2)]", 17),
    "average pool": (IMAGE, [node("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[1, 2],
                                  pads=[1, 1, 1, 1])], [], "f32[b,4,h,((w+1)//2)]", 17),
    "lp pool": (IMAGE, [node("LpPool", "x", "y", kernel_shape=[2, 3])], [],
                "f32[b,4,(h-1),(w-2)]", 17),
    "global": (IMAGE, [node("GlobalMaxPool", "x", "y")], [], "f32[b,4,1,1]", 17),
    "unpool": (IMAGE, [node("MaxPool", "x", "p i", kernel_shape=[2, 2], strides=[2, 2]),
                       node("MaxUnpool", "p i", "y", kernel_shape=[2, 2], strides=[2, 2])], [],
               "f32[b,4,((h//2)*2),((w//2)*2)]", 17),
    "resize by scales": (IMAGE, [node("Resize", "x _ k", "y")], [tensor("k", [1, 1, 2, 0.5])],
                         "f32[b,4,(h*2),(w//2)]", 17),
    "resize by sizes": (IMAGE, [node("Shape", "x", "q"), node("Mul", "q f", "t"),
                                node("Resize", "x _ _ t", "y")], [ints("f", 1, 1, 3, 2)],
                        "f32[b,4,(h*3),(w*2)]", 17),
    "resize some axes": (IMAGE, [node("Resize", "x _ k", "y", axes=[2, 3])],
                         [tensor("k", [2, 1.5])], "f32[b,4,(h*2),((w//2)+w)]", 18),
    "resize by whole floats": (
        IMAGE,
        [node("Shape", "x", "q"), node("Gather", "q i", "n"), node("Cast", "n", "f", to=1),
         node("Mul", "f two", "g"), node("Floor", "g", "e"), node("Cast", "e", "m", to=7),
         node("Concat", "one four m m", "t", axis=0), node("Resize", "x _ _ t", "y")],
        [ints("i", 2), tensor("two", 2.0), ints("one", 1), ints("four", 4)],
        "f32[1,4,(h*2),(h*2)]", 17,
    ),
    "upsample": (IMAGE, [node("Upsample", "x k", "y")], [tensor("k", [1, 1, 2, 2])],
                 "f32[b,4,(h*2),(w*2)]", 9),
    "pad": (IMAGE, [node("Pad", "x q", "y", mode="reflect")], [ints("q", 0, 0, 1, 0, 0, 0, 0, 1)],
            "f32[b,4,(h+1),(w+1)]", 17),
    "pad some axes": (IMAGE, [node("Pad", "x q _ a", "y")], [ints("q", 2, 1), ints("a", -1)],
                      "f32[b,4,h,(w+3)]", 18),
    "depth to space": (IMAGE, [node("DepthToSpace", "x", "y", blocksize=2)], [],
                       "f32[b,1,(h*2),(w*2)]", 17),
    "space and back": (IMAGE, [node("DepthToSpace", "x", "d", blocksize=2),
                               node("SpaceToDepth", "d", "y", blocksize=2)], [],
                       "f32[b,4,h,w]", 17),
    "split unevenly": (ROWS, [node("Split", "x", "z y", axis=1, num_outputs=2)], [],
                       "f32[b,(s-((s+1)//2)),12]", 18),
    "split by sizes": (ROWS, [node("Shape", "x", "q"), node("Gather", "q i", "n"),
                              node("Sub", "n i", "m"), node("Concat", "i m", "k", axis=0),
                              node("Split", "x k", "z y", axis=1)], [ints("i", 1)],
                       "f32[b,(s-1),12]", 17),
    "every second": (ROWS, [node("Slice", "x o e a t", "y")],
                     [ints("o", 1), ints("e", 1 << 40), ints("a", 1), ints("t", 2)],
                     "f32[b,(s//2),12]", 17),
    "backwards": (ROWS, [node("Slice", "x o e a t", "y")],
                  [ints("o", -1), ints("e", -(1 << 40)), ints("a", 1), ints("t", -2)],
                  "f32[b,((s+1)//2),12]", 17),
    "steps": (ROWS, [node("Shape", "x", "q"), node("Gather", "q i", "n"),
                     node("Range", "o n t", "r"), node("Cast", "r", "y", to=1)],
              [tensor("i", 1, np.int64), tensor("o", 0, np.int64), tensor("t", 3, np.int64)],
              "f32[((s+2)//3)]", 17),
    "float steps": (ROWS, [node("Shape", "x", "q"), node("Gather", "q i", "n"),
                           node("Cast", "n", "f", to=1), node("Range", "o f t", "y")],
                    [tensor("i", 1, np.int64), tensor("o", 0.0), tensor("t", 1.0)], "f32[s]", 17),
    "spectrum": (["b", "n", 1], [node("STFT", "x t _ n", "y")],
                 [tensor("t", 2, np.int64), tensor("n", 4, np.int64)],
                 "f32[b,((n//2)-1),3,2]", 17),
    "einsum": (ROWS, [node("Einsum", "x x", "y", equation="...sd,...td->t...")], [],
               "f32[s,b]", 17),
    "best": (ROWS, [node("TopK", "x k", "y i", axis=2)], [ints("k", 3)], "f32[b,s,3]", 17),
    "recurrent": (ROWS, [node("LSTM", "x k r", "y h c", hidden_size=5)],
                  [w(1, 20, 12), tensor("r", np.ones((1, 20, 5)))], "f32[b,1,s,5]", 17),
}  # fmt: skip

SIZES: Sequence[Mapping[str, int]] = (
    {"b": 1, "h": 7, "w": 10, "s": 5, "n": 9}, {"b": 2, "h": 12, "w": 5, "s": 8, "n": 12},
)  # fmt: skip

NEEDED: Mapping[str, Mapping[str, int]] = {
    "resize by whole floats": {"b": 1}, "unpool": {"h": 8, "w": 10},
}  # fmt: skip
"""Sizes at which ONNX Runtime runs the case."""


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_derived_and_right(name: str, tmp_path: Path) -> None:
    dims, nodes, tensors, expected, opset = CASES[name]
    proto = model(nodes, [value("x", dims)], [value("y", None)], tensors, opset)
    graph = read(proto, tmp_path).graph
    assert str(graph.spec("y")) == expected
    for one in SIZES:
        sizes = {**one, **NEEDED.get(name, {})}
        shape = [sizes.get(str(d), d) for d in dims]
        found = run(tmp_path / "m.onnx", {"x": np.ones(shape, np.float32)})[0].shape
        assert tuple(evaluate(d, sizes) for d in graph.spec("y").shape or ()) == found


def test_a_pool_whose_last_window_may_start_in_the_padding_stays_open(tmp_path: Path) -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)
    graph = read(model([pool], [value("x", IMAGE)], [value("y", None)]), tmp_path).graph
    assert str(graph.spec("y")) == "f32[b,4,?0,?1]"


LOOP_IN = [value("i", [], I64), value("k", [], BOOL), value("v", None), value("g", None)]


def test_a_loop_keeps_the_sizes_its_body_keeps(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Relu", "v", "v2"), node("Concat", "g g", "g2", axis=1), node("Identity", "k", "k2"),
         node("Neg", "v", "e")],
        "body", LOOP_IN,
        [value("k2", [], BOOL), value("v2", None), value("g2", None), value("e", None)],
    )  # fmt: skip
    nodes = [node("Loop", "n _ x x", "l m s", body=body), node("Relu", "l", "y"),
             node("Relu", "m", "z")]  # fmt: skip
    proto = model(nodes, [value("x", ROWS)], [value("y", None), value("z", None)],
                  [tensor("n", 3, np.int64)])  # fmt: skip
    graph = read(proto, tmp_path).graph
    assert str(graph.spec("y")) == "f32[b,s,12]"
    assert str(graph.spec("z")).startswith("f32[b,?")


def test_sums_that_names_spell(tmp_path: Path) -> None:
    inputs = [value("x", ["b", "s + p", 12]), value("p", ["b", "p", 12]),
              value("q", ["b", "s", 12])]  # fmt: skip
    nodes = [node("Concat", "p q", "c", axis=1), node("Add", "c x", "y")]
    graph = read(model(nodes, inputs, [value("y", None)]), tmp_path).graph
    assert str(graph.spec("x")) == "f32[b,(p+s),12]" == str(graph.spec("y"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "height", "width"), [("unet", 97, 50), ("detector", 64, 96)])
def test_every_size_of_a_vision_model(name: str, height: int, width: int, tmp_path: Path) -> None:
    """Each value's derived sizes against what ONNX Runtime makes, odd sizes included."""
    path = make(name, tmp_path)
    graph = load(path).graph
    proto = onnx.load(path)
    there = {v for n in proto.graph.node for v in n.output}
    shapes = {v: s for r in graph.regions() for v in r.writes
              if v in there and (s := graph.spec(v).shape) is not None}  # fmt: skip
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in shapes)
    onnx.save(proto, tmp_path / "all.onnx")
    given = {"images": np.ones((2, 3, height, width), np.float32)}
    sizes = {"batch": 2, "height": height, "width": width}
    found = run(tmp_path / "all.onnx", given)
    assert len(found) > 50
    for (name_, shape), array in zip(shapes.items(), found, strict=True):
        assert tuple(evaluate(d, sizes) for d in shape) == array.shape, name_


def test_ten_thousand_nodes_in_seconds(tmp_path: Path) -> None:
    """Import to region graph: about 1.5 s of processor time, which a busy machine may double."""
    nodes, last = [], "x"
    for i in range(3334):
        nodes += [node("Conv", f"{last} k", f"a{i}", pads=[1] * 4), node("Relu", f"a{i}", f"r{i}"),
                  node("Add", f"r{i} {last}", f"s{i}")]  # fmt: skip
        last = f"s{i}"
    proto = model(nodes, [value("x", IMAGE)], [value(last, IMAGE)], [w(4, 4, 3, 3)])
    onnx.save(proto, tmp_path / "m.onnx")
    start = time.process_time()
    graph = load(tmp_path / "m.onnx").graph
    assert time.process_time() - start < 15.0
    assert str(graph.spec(last)) == "f32[b,4,h,w]"
