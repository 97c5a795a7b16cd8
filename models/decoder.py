"""Decoders as onnxruntime-genai writes them: build one, and time it.

    python -m models.decoder llama-3.2-1b OUT.onnx [--block 32|128] [--level 0|4] [--bits 4|8|16]
        [--half] [--caches fp16|int8]
    python -m models.decoder --time MODEL.onnx RESULT.onnx [--past 512] [--prompt 128] [--copied]

The shapes are those of the named models, the weights random numbers of realistic size: codes with
a scale for each block, ``MatMulNBits`` for every product, ``GroupQueryAttention`` with caches,
norms and sums fused.  The embedding table is the output head's codes (``GatherBlockQuantized``).
With 16 bits, weights are matrices of fp16 and products ``MatMul``.  ``--half`` makes all
numbers fp16, as in models for GPUs; ``--caches`` the caches alone, int8 ones with a scale for each
column of a head.
Timing runs both models alternately and prints processor time, which other load hardly changes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["DECODERS", "Shape", "build"]

_MICROSOFT = "com.microsoft"
_EPSILON = 1e-5
_ROTARY_BASE = 500000.0
_PLAIN = 16
"""Bits of weights that are not quantized."""
_SPREAD = 4.61
"""Standard deviation of uniformly drawn 4-bit codes."""
_CACHES: dict[str, type[np.generic]] = {"fp16": np.float16, "int8": np.int8}
"""Types of caches that are not those of the other numbers."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; with ``norms``, queries and keys are normalized head by head."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    words: int
    norms: bool = False
    longest: int = 4096


DECODERS = {
    "llama-3.2-1b": Shape(2048, 16, 32, 8, 64, 8192, 128256),
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151936, norms=True),
    "small-llama": Shape(128, 2, 4, 2, 32, 256, 192, longest=256),
    "small-qwen3": Shape(64, 2, 4, 2, 32, 128, 128, norms=True, longest=256),
}
"""Shapes by name; the small ones are for tests."""


class _Builder:
    """Collects the nodes and weights of one decoder."""

    def __init__(
        self, shape: Shape, block: int, level: int, bits: int, half: bool, hollow: bool,
        caches: str,
    ) -> None:  # fmt: skip
        self.shape, self.block, self.level, self.bits = shape, block, level, bits
        self.hollow = hollow
        self.type: type[np.floating[Any]] = np.float16 if half else np.float32
        self.cached = _CACHES.get(caches, self.type)
        self.rng = np.random.default_rng(20261126)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(
        self, op: str, inputs: list[str], *outputs: str, domain: str = "", **attrs: Any
    ) -> str:
        self.nodes.append(
            helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **attrs)
        )
        return outputs[0]

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def gain(self, name: str, size: int) -> str:
        drawn = 1 + self.rng.standard_normal(size) / 10
        return self.weight(name, drawn.astype(self.type))

    def numbers(self, name: str, shape: tuple[int, int], size: float) -> str:
        """A matrix stored in fp16, converted where other numbers are float32."""
        drawn = np.zeros(shape, np.float16)
        if not self.hollow:
            drawn[:] = self.rng.standard_normal(shape, np.float32) * np.float32(size)
        stored = self.weight(name, drawn)
        if self.type is np.float16:
            return stored
        return self.node("Cast", [stored], f"{name}.wide", to=TensorProto.FLOAT)

    def codes(self, name: str, k: int, n: int) -> list[str]:
        """Codes and scales of a matrix ``[K, N]`` whose products keep the size of their rows.

        With 16 bits, numbers: ``[K, N]``.
        """
        if self.bits == _PLAIN:
            return [self.numbers(f"{name}.weight", (k, n), k**-0.5)]
        blocks, spread = -(-k // self.block), _SPREAD * 2.0 ** (self.bits - 4) * k**0.5
        stored = n, blocks, self.block * self.bits // 8
        if self.hollow:
            codes = np.zeros(stored, np.uint8)
        else:
            codes = self.rng.integers(0, 256, stored, np.uint8)
        scales = self.rng.uniform(0.7, 1.3, (n, blocks)).astype(np.float32)
        return [
            self.weight(f"{name}.weight_Q{self.bits}", codes),
            self.weight(f"{name}.weight_scales", (scales / np.float32(spread)).astype(self.type)),
        ]

    def product(self, x: str, name: str, k: int, n: int, stored: list[str] | None = None) -> str:
        attrs = {"K": k, "N": n, "bits": self.bits, "block_size": self.block}
        attrs |= {"accuracy_level": self.level} if self.level else {}
        stored = stored or self.codes(name, k, n)
        if self.bits == _PLAIN:
            return self.node("MatMul", [x, *stored], f"{name}.out")
        return self.node("MatMulNBits", [x, *stored], f"{name}.out", domain=_MICROSOFT, **attrs)

    def lengths(self) -> None:
        """Lengths of items and of the whole from the mask, and the rotary tables."""
        size = self.shape.head
        places = np.arange(self.shape.longest)[:, None]
        angles = places * _ROTARY_BASE ** (-np.arange(size // 2) * 2 / size)
        self.weight("cos_cache", np.cos(angles).astype(self.type))
        self.weight("sin_cache", np.sin(angles).astype(self.type))
        self.weight("one", np.array([1]))
        self.weight("second", np.array(1))
        self.node("ReduceSum", ["attention_mask", "one"], "counted", keepdims=0)
        less = self.node("Sub", ["counted", "one"], "less")
        self.node("Cast", [less], "seqlens_k", to=TensorProto.INT32)
        sizes = self.node("Shape", ["attention_mask"], "mask_sizes")
        total = self.node("Gather", [sizes, "second"], "total_size", axis=0)
        self.node("Cast", [total], "total_sequence_length", to=TensorProto.INT32)

    def normalized(self, x: str, name: str, heads: int) -> str:
        """x with every head divided by its root mean square."""
        rows = self.weight(f"{name}.by_head", np.array([0, 0, heads, self.shape.head]))
        flat = self.weight(f"{name}.flat", np.array([0, 0, heads * self.shape.head]))
        apart = self.node("Reshape", [x, rows], f"{name}.apart")
        gain = self.gain(f"{name}.gain", self.shape.head)
        y = self.node("SimplifiedLayerNormalization", [apart, gain], f"{name}.normalized",
                      axis=-1, epsilon=_EPSILON, stash_type=1)  # fmt: skip
        return self.node("Reshape", [y, flat], f"{name}.together")

    def attention(self, x: str, at: str) -> str:
        s = self.shape
        wide, narrow = s.heads * s.head, s.kv_heads * s.head
        q, k, v = (self.product(x, f"{at}.{n}_proj", s.width, size)
                   for n, size in (("q", wide), ("k", narrow), ("v", narrow)))  # fmt: skip
        if s.norms:
            q = self.normalized(q, f"{at}.q_norm", s.heads)
            k = self.normalized(k, f"{at}.k_norm", s.kv_heads)
        caches = [f"past_key_values.{at}.{c}" for c in ("key", "value")]
        results = [f"{at}.attended", *(f"present.{at}.{c}" for c in ("key", "value"))]
        operands = [q, k, v, *caches, "seqlens_k", "total_sequence_length", "cos_cache",
                    "sin_cache"]  # fmt: skip
        quantized: dict[str, Any] = {}
        if self.cached is np.int8:
            columns = 1, s.kv_heads, 1, s.head
            scales = [self.rng.uniform(0.7, 1.3, columns) * 4 / 127 for _ in range(2)]
            names = [f"{at}.{c}_scale" for c in ("key", "value")]
            for name, array in zip(names, scales, strict=True):
                self.weight(name, array.astype(np.float32))
            operands += ["", "", "", *names]
            kinds = {f"{c}_quant_type": "PER_CHANNEL" for c in "kv"}
            quantized = {"kv_cache_bit_width": 8, **kinds}
        self.node(
            "GroupQueryAttention", operands, *results, domain=_MICROSOFT, num_heads=s.heads,
            kv_num_heads=s.kv_heads, do_rotary=1, scale=s.head**-0.5, **quantized,
        )  # fmt: skip
        return self.product(results[0], f"{at}.o_proj", wide, s.width)

    def added(self, x: str, y: str, name: str, last: bool = False) -> tuple[str, str]:
        """The norm of x + y, and x + y."""
        results = [name, *([] if last else ["", "", f"{name}.sum"])]
        self.node("SkipSimplifiedLayerNormalization",
                  [x, y, self.gain(f"{name}.gain", self.shape.width)], *results,
                  domain=_MICROSOFT, epsilon=_EPSILON)  # fmt: skip
        return name, results[-1]

    def gated(self, x: str, at: str) -> str:
        s = self.shape
        gate, up = (self.product(x, f"{at}.{n}_proj", s.width, s.inner) for n in ("gate", "up"))
        act = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{at}.sigmoid")], f"{at}.act")
        inner = self.node("Mul", [act, up], f"{at}.inner")
        return self.product(inner, f"{at}.down_proj", s.inner, s.width)

    def embedded(self, head: list[str]) -> str:
        """Rows of the output head's matrix, scaled; of 16 bits, of a table of their own."""
        s = self.shape
        if self.bits == _PLAIN:
            table = self.numbers("embed_tokens.weight", (s.words, s.width), 1)
            return self.node("Gather", [table, "input_ids"], "embed_tokens.out", axis=0)
        sizes = self.weight("lm_head.bytes_of_row", np.array([s.words, -1]))
        flat = self.node("Reshape", [head[0], sizes], "embed_tokens.codes")
        x = self.node(
            "GatherBlockQuantized", [flat, "input_ids", head[1]], "embed_tokens.rows",
            domain=_MICROSOFT, bits=self.bits, block_size=self.block, gather_axis=0,
            quantize_axis=1,
        )  # fmt: skip
        scale = self.weight("embed_tokens.scale", np.asarray(s.width**0.5, self.type))
        return self.node("Mul", [x, scale], "embed_tokens.out")

    def model(self) -> onnx.ModelProto:
        s = self.shape
        self.lengths()
        head = self.codes("lm_head", s.width, s.words)
        x = self.embedded(head)
        y = self.node("SimplifiedLayerNormalization", [x, self.gain("first.gain", s.width)],
                      "first", axis=-1, epsilon=_EPSILON, stash_type=1)  # fmt: skip
        for i in range(s.layers):
            y, x = self.added(x, self.attention(y, str(i)), f"{i}.middle")
            y, x = self.added(x, self.gated(y, str(i)), f"{i}.end", i == s.layers - 1)
        self.product(y, "lm_head", s.width, s.words, head)
        self.nodes[-1].output[0] = "logits"
        return self._finished()

    def _finished(self) -> onnx.ModelProto:
        s = self.shape

        number = helper.np_dtype_to_tensor_dtype(np.dtype(self.type))
        cached = helper.np_dtype_to_tensor_dtype(np.dtype(self.cached))

        def info(name: str, *dims: Any, kind: int = number) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, dims)

        caches = [f"{i}.{c}" for i in range(s.layers) for c in ("key", "value")]
        inputs = [
            info("input_ids", "batch", "sequence", kind=TensorProto.INT64),
            info("attention_mask", "batch", "total_sequence", kind=TensorProto.INT64),
            *(info(f"past_key_values.{c}", "batch", s.kv_heads, "past_sequence", s.head,
                   kind=cached) for c in caches),
        ]  # fmt: skip
        outputs = [
            info("logits", "batch", "sequence", s.words),
            *(
                info(f"present.{c}", "batch", s.kv_heads, "total_sequence", s.head, kind=cached)
                for c in caches
            ),
        ]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def build(
    name: str, block: int = 32, level: int = 4, bits: int = 4, half: bool = False,
    hollow: bool = False, caches: str = "",
) -> onnx.ModelProto:  # fmt: skip
    """Return the decoder of one of :data:`DECODERS`; raises KeyError for any other name.

    The matrices of a ``hollow`` decoder are zero.  With ``half``, all numbers are fp16; ``caches``
    is ``fp16`` or ``int8`` if the caches have another type than the other numbers.
    """
    shape = DECODERS[name]
    return _Builder(shape, block, level, bits, half, hollow, caches).model()


# ---- timing ----------------------------------------------------------------------------------

_ARRAYS = {"tensor(float16)": np.float16, "tensor(int8)": np.int8}


def _session(path: str, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    library = Path(path).with_suffix(".so")
    if library.is_file():
        options.register_custom_ops_library(str(library.resolve()))
    return onnxruntime.InferenceSession(path, options)


def _feeds(session: onnxruntime.InferenceSession, rows: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([rows, past])
    words = session.get_outputs()[0].shape[-1]
    feeds = {
        "input_ids": rng.integers(0, words, (1, rows)),
        "attention_mask": np.ones((1, past + rows), np.int64),
    }
    inputs = session.get_inputs()[2:]
    if inputs[0].name == "position_ids":
        feeds["position_ids"] = np.arange(past, past + rows)[None]
        del inputs[0]
    for value in inputs:
        _, heads, _, size = value.shape
        drawn = rng.standard_normal((1, heads, past, size))
        if value.type == "tensor(int8)":
            drawn = np.clip(np.rint(drawn * 32), -128, 127)
        feeds[value.name] = drawn.astype(_ARRAYS.get(value.type, np.float32))
    return feeds


def _bound(
    session: onnxruntime.InferenceSession, rows: int, past: int, copied: bool
) -> onnxruntime.IOBinding:
    """Bind inputs, and caches that new rows are written into in place unless they are copied."""
    binding = session.io_binding()
    for name, array in _feeds(session, rows, past).items():
        if copied and name.startswith("past_key_values"):
            binding.bind_output(name.replace("past_key_values", "present"))
        if copied or not name.startswith("past_key_values"):
            binding.bind_cpu_input(name, array)
            continue
        wide = np.pad(array, ((0, 0), (0, 0), (0, rows), (0, 0)))
        cache = onnxruntime.OrtValue.ortvalue_from_numpy(wide)
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
    binding.bind_output(session.get_outputs()[0].name)
    return binding


def _timed(
    sessions: list[onnxruntime.InferenceSession], rows: int, past: int, runs: int, copied: bool
) -> None:
    """Print milliseconds of processor time of both, and how far apart their logits are."""
    bindings = [_bound(session, rows, past, copied) for session in sessions]
    taken: list[list[float]] = [[] for _ in sessions]
    for _ in range(runs + 1):
        for session, binding, times in zip(sessions, bindings, taken, strict=True):
            start = time.process_time()
            session.run_with_iobinding(binding)
            times.append(time.process_time() - start)
    logits = [b.get_outputs()[-1].numpy() for b in bindings]
    apart = float(np.abs(logits[0] - logits[-1]).max() / np.abs(logits[0]).max())
    a, b = (statistics.median(times[1:]) for times in (taken[0], taken[-1]))
    ratios = sorted(x / y for x, y in zip(taken[0][1:], taken[-1][1:], strict=True))
    print(
        f"{rows:4d} rows, {past} past: {a * 1e3:8.2f} ms, {b * 1e3:8.2f} ms, "
        f"median ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
        f"logits {apart:.1e} of their largest apart",
        flush=True,
    )


def main() -> None:
    """Parse the command line; write a decoder, or time two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", help="a decoder's name; with --time the original")
    parser.add_argument("second", help="the file to write; with --time the result")
    parser.add_argument("--block", type=int, default=32, help="codes with one scale")
    parser.add_argument("--level", type=int, default=4, help="accuracy level")
    parser.add_argument("--bits", type=int, default=4, help="bits of a code; 16: plain numbers")
    parser.add_argument("--half", action="store_true", help="all numbers in fp16")
    parser.add_argument("--caches", choices=_CACHES, default="", help="type of the caches")
    parser.add_argument("--time", action="store_true", help="time two files")
    parser.add_argument("--past", type=int, default=512, help="rows held by the caches")
    parser.add_argument("--prompt", type=int, default=128, help="rows of a prompt; 0: none")
    parser.add_argument("--copied", action="store_true",
        help="caches grow by Concat, as in the zoo's decoders, instead of in place")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    if not args.time:
        model = build(args.first, args.block, args.level, args.bits, args.half, caches=args.caches)
        target = Path(args.second)
        target.with_suffix(".data").unlink(missing_ok=True)  # onnx writes no file twice
        onnx.save(model, target, save_as_external_data=True, location=f"{target.stem}.data")
        return
    sessions = [_session(path, args.threads) for path in (args.first, args.second)]
    _timed(sessions, 1, args.past, args.runs, args.copied)
    if args.prompt:
        _timed(sessions, args.prompt, 0, max(3, args.runs // 4), args.copied)


if __name__ == "__main__":
    main()
