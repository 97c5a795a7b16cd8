// One run of a program: memory layout, launches, and the CUDA graph built from them.
#pragma once
#include "runtime/device.h"

namespace tracea {

constexpr int64_t kAlign = 256;
constexpr int32_t kMostKept = 8;  // layouts cached by a context
constexpr int64_t kMostRead = 16 << 10;  // bytes of inputs that kernels read from host memory
constexpr int64_t kMostWritten = 256 << 10;  // and of outputs that kernels write to host memory

inline int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlign) * kAlign; }

// A launch with its arguments, stored in `bytes` at multiples of 8.
struct Ready {
  cu::Function function;
  unsigned grid[3];
  int32_t threads, shared;
  void** parameters;  // null if the grid is empty
};

// A program instantiated for concrete sizes in one context.
struct Layout {
  int64_t* symbols;
  int64_t *counts, *offsets;  // sizes of buffers, and offsets in the context's arena; -1: constant
  int64_t in_bytes, out_bytes, out_first, bytes;
  bool direct;  // kernels read inputs directly from host memory
  bool written;  // and write outputs directly to host memory
  Ready* launches;
  cu::Graph graph;
  cu::Exec exec;
  uint64_t used;
  int64_t runs;
  Pool pool;
};

// Resources of one run at a time: a stream, a device arena and pinned host memory.
struct Context {
  cu::Stream stream;
  bool borrowed;  // the stream belongs to ONNX Runtime
  cu::Address memory;
  int64_t bytes, in_bytes, out_bytes;
  char *in, *out;
  Layout* layouts[kMostKept];
  uint64_t clock;
  Context* next;
};

// State shared by all runs of a node.
struct Shared {
  const Program* program;
  cu::Function* functions;     // one for each launch
  cu::Address* constants;      // one for each buffer; 0: not constant
  bool* once;                  // launches that ran when the node was created
  Device* device;
  bool resident;               // inputs and outputs are in device memory, no host copies
  int64_t kept_bytes;
};

inline void release(Layout* layout) {
  if (!layout) return;
  if (layout->exec) gpu.driver.destroy_exec(layout->exec);
  if (layout->graph) gpu.driver.destroy_graph(layout->graph);
  layout->pool.release();
  free(layout);
}

inline void forget(Context& c) {
  for (Layout*& layout : c.layouts) release(layout), layout = nullptr;
}

inline void release(Context* c) {
  if (!c) return;
  if (c->stream && !c->borrowed) gpu.driver.wait_for_stream(c->stream);
  forget(*c);
  if (c->memory) gpu.driver.free_device(c->memory);
  if (c->in) gpu.driver.free_host(c->in);
  if (c->out) gpu.driver.free_host(c->out);
  if (c->stream && !c->borrowed) gpu.driver.destroy_stream(c->stream);
  free(c);
}

// Magic-number division n / d for n < 2^31, see kernels/gpu/launch.py.
inline void divisor(int64_t d, uint32_t* out) {
  out[0] = static_cast<uint32_t>(d), out[1] = out[2] = 0;
  if (d == 1) return;
  const int p = 64 - __builtin_clzll(static_cast<uint64_t>(d - 1));
  const unsigned __int128 shifted = static_cast<unsigned __int128>(1) << (31 + p);
  out[1] = static_cast<uint32_t>((shifted + static_cast<uint64_t>(d) - 1) / static_cast<uint64_t>(d));
  out[2] = static_cast<uint32_t>(p - 1);
}

// Arguments of a tensor map: the tensor's sizes in elements and its strides in bytes.
struct Shape {
  uint64_t dims[kMaxAxes], strides[kMaxAxes];
  int lower[2], upper[2];  // corners of the im2col bounding box
};

// Whether a tensor at an address meets the alignment rules of tensor maps.
inline bool shape_of(const Argument& a, const int64_t* sizes, cu::Address at, Shape* out) {
  constexpr int64_t kStep = 16, kMostDim = int64_t{1} << 32, kMostStride = int64_t{1} << 40;
  bool fits = at % kStep == 0;
  for (int32_t i = 0; i < a.map->rank; ++i) {
    const int64_t dim = sizes[a.map->dims[i]];
    fits = fits && dim > 0 && dim <= kMostDim;
    out->dims[i] = static_cast<uint64_t>(dim);
    if (!i) continue;
    const int64_t stride = sizes[a.map->strides[i]];
    fits = fits && stride > 0 && stride < kMostStride / a.bytes && stride * a.bytes % kStep == 0;
    out->strides[i - 1] = static_cast<uint64_t>(stride) * static_cast<uint64_t>(a.bytes);
  }
  for (int i = 0; a.kind == Argument::kPixels && i < 2; ++i) {
    const int64_t before = sizes[a.map->before[i]], after = sizes[a.map->after[i]];
    constexpr int64_t kMostCorner = 127;
    fits = fits && before >= 0 && before <= kMostCorner && after >= -kMostCorner &&
           after <= kMostCorner;
    out->lower[i] = static_cast<int>(-before), out->upper[i] = static_cast<int>(after);
  }
  return fits;
}

// Encodes the tensor map of a tensor; false if its address or strides do not allow one.
inline bool describe(const Argument& a, const int64_t* sizes, cu::Address at, cu::TensorMap* out) {
  const Map& map = *a.map;
  const bool pixels = a.kind == Argument::kPixels;
  const uint32_t steps[kMaxAxes] = {1, pixels ? map.steps[0] : 1, pixels ? map.steps[1] : 1, 1, 1};
  Shape shape;
  if (!shape_of(a, sizes, at, &shape)) return false;
  const int type = map.type == kHalf        ? cu::kMapF16
                   : map.type == kBrainHalf ? cu::kMapBF16
                                            : cu::kMapU8;
  const uint32_t rank = static_cast<uint32_t>(map.rank);
  void* place = reinterpret_cast<void*>(at);
  const cu::Result result =
      pixels ? gpu.driver.encode_pixels(out, type, rank, place, shape.dims, shape.strides,
                                        shape.lower, shape.upper, map.box[0], map.box[1], steps, 0,
                                        cu::kSwizzle128, cu::kPromote256, 0)
             : gpu.driver.encode_map(out, type, rank, place, shape.dims, shape.strides, map.box,
                                     steps, 0, cu::kSwizzle128, cu::kPromote256, 0);
  return !result;
}

// Selects among alternatives the first that has an image for this GPU, applies to these sizes and
// can encode its tensor maps; the last one always applies.
template <class Address>
int32_t chosen(const Program& p, const cu::Function* functions, int32_t launch,
               const int64_t* sizes, Address address) {
  for (;; ++launch) {
    const Launch& own = p.launches[launch];
    if (!own.others) return launch;
    bool fits = functions[launch] && sizes[own.when] > 0;
    for (int32_t i = 0; fits && i < own.count; ++i) {
      const Argument& a = own.arguments[i];
      cu::TensorMap map;
      if (a.maps())
        fits = sizes[a.value] >= 0 &&
               describe(a, sizes,
                        address(a.buffer) + static_cast<uint64_t>(sizes[a.value] * a.bytes), &map);
    }
    if (fits) return launch;
  }
}

// Writes an argument to `to`; false with an error for numbers beyond a kernel's 32-bit indices.
// `constants` holds addresses of constant buffers, null while these are being computed.
template <class Address>
bool write_argument(Error& error, const Argument& a, const int64_t* sizes, const int64_t* counts,
                    const cu::Address* constants, Address address, char* to) {
  if (a.kind == Argument::kFixed) {
    const int32_t fixed = constants && constants[a.buffer];
    return memcpy(to, &fixed, sizeof fixed), true;
  }
  if (a.kind == Argument::kReal) {
    const uint32_t bits = static_cast<uint32_t>(a.value);
    return memcpy(to, &bits, sizeof bits), true;
  }
  if (a.kind == Argument::kPointer && a.buffer < 0) return memset(to, 0, 8), true;
  const int64_t value = sizes[a.value];
  if (value == kNoValue) return error.fail("A size of the plan cannot be computed.");
  if (a.addresses()) {
    const int64_t span = sizes[a.span];
    if (span == kNoValue || span < 0 || span - 1 > kMostCounted)
      return error.fail("A view spans %lld elements, more than GPU kernels count.",
                        static_cast<long long>(span));
    if (span && (value < 0 || (value + span) * a.bytes > counts[a.buffer]))
      return error.fail("A view of the plan lies outside its buffer.");
    const cu::Address at = address(a.buffer) + static_cast<uint64_t>(span ? value * a.bytes : 0);
    if (a.maps()) {
      cu::TensorMap map;
      if (!describe(a, sizes, at, &map))
        return error.fail("A tensor of the plan does not lie as its tensor map says.");
      return memcpy(to, &map, sizeof map), true;
    }
    return memcpy(to, &at, sizeof at), true;
  }
  if (value > kMostCounted || value < -kMostCounted)
    return error.fail("%lld is more than GPU kernels count.", static_cast<long long>(value));
  if (a.kind == Argument::kDivisor) {
    uint32_t words[3];
    divisor(max(value, 1), words);
    return memcpy(to, words, sizeof words), true;
  }
  const int32_t number = static_cast<int32_t>(value);
  return memcpy(to, &number, sizeof number), true;
}

template <class Address>
bool make_ready(Error& error, const Device& device, const Launch& launch, cu::Function function,
                const int64_t* sizes, const int64_t* counts, const cu::Address* constants,
                Address address, Pool& pool, Ready* out) {
  *out = {function, {0, 0, 0}, launch.threads, launch.shared, nullptr};
  for (int i = 0; i < 3; ++i) {
    const int64_t extent = sizes[launch.grid[i]];
    if (extent == kNoValue || extent < 0 || extent > (i ? 0xffff : kMostCounted))
      return error.fail("A kernel would take %lld blocks, more than a grid has.",
                        static_cast<long long>(extent));
    out->grid[i] = static_cast<unsigned>(extent);
  }
  if (launch.persistent)
    out->grid[0] = static_cast<unsigned>(
        min(out->grid[0], launch.persistent * device.multiprocessors));
  if (!out->grid[0] || !out->grid[1] || !out->grid[2]) return true;
  auto room = [](const Argument& a) {
    return a.maps() ? static_cast<int64_t>(sizeof(cu::TensorMap)) : 16;
  };
  int64_t size = 0;
  for (int32_t i = 0; i < launch.count; ++i) size += room(launch.arguments[i]);
  char* at = pool.array<char>(size + 16);
  void** parameters = pool.array<void*>(launch.count + 1);
  if (!at || !parameters) return error.fail("There is no memory for a launch.");
  for (int32_t i = 0; i < launch.count; ++i) {
    const Argument& a = launch.arguments[i];
    parameters[i] = at;
    if (!write_argument(error, a, sizes, counts, constants, address, at)) return false;
    at += room(a);
  }
  out->parameters = parameters;
  return true;
}

inline bool start(Error& error, const Ready& r, cu::Stream stream) {
  if (!r.parameters) return true;
  const cu::LaunchConfig config = {{r.grid[0], r.grid[1], r.grid[2]},
                                   {static_cast<unsigned>(r.threads), 1, 1},
                                   static_cast<unsigned>(r.shared), stream, nullptr, 0};
  return good(error, gpu.driver.launch(&config, r.function, r.parameters, nullptr),
              "start a kernel");
}

inline int32_t type_of(const Program& p, int32_t buffer) {
  const int32_t tensors = p.tensor_count();
  return buffer < tensors ? p.tensors[buffer].type : p.temps[buffer - tensors].type;
}

// Computes the size of every buffer in bytes.
inline bool count_buffers(Error& error, const Program& p, const int64_t* sizes, int64_t* counts) {
  for (int32_t i = 0; i < p.tensor_count(); ++i) {
    int64_t count = 1;
    for (int32_t axis = 0; axis < p.tensors[i].rank; ++axis) {
      const int64_t dim = sizes[p.tensors[i].dims[axis]];
      if (dim < 0 || __builtin_mul_overflow(count, dim, &count) || count > INT64_MAX / 64)
        return error.fail("The size of a tensor of the plan cannot be computed.");
    }
    counts[i] = count * element_size(type_of(p, i));
  }
  for (int32_t i = 0; i < p.temp_count; ++i) {
    const int64_t count = sizes[p.temps[i].count];
    if (count == kNoValue || count > INT64_MAX / 64)
      return error.fail("The size of temp %d cannot be computed.", i);
    counts[p.tensor_count() + i] = max(count, 0) * element_size(p.temps[i].type);
  }
  return true;
}

// Assigns arena offsets to inputs, outputs and temporaries: lowest free offset over the lifetime.
inline void lay_out(const Shared& s, Layout& out) {
  const Program& p = *s.program;
  int64_t at = 0;
  auto bytes = [&](int32_t buffer) { return aligned(out.counts[buffer]); };
  for (int32_t i = 0; i < p.tensor_count(); ++i) {
    if (i == p.input_count) out.in_bytes = out.out_first = at;
    out.offsets[i] = s.constants[i] ? -1 : at;
    at += s.constants[i] ? 0 : bytes(i);
  }
  out.out_bytes = at - out.out_first;
  const int64_t base = at;
  for (int32_t i = 0; i < p.temp_count; ++i) {
    const int32_t own = p.tensor_count() + i;
    out.offsets[own] = -1;
    if (s.constants[own]) continue;
    const int64_t size = bytes(own);
    int64_t place = base;
    for (bool moved = true; moved;) {
      moved = false;
      for (int32_t k = 0; k < i; ++k) {
        const int32_t other = p.tensor_count() + k;
        const int64_t from = out.offsets[other], to = from + bytes(other);
        const bool together = p.temps[k].first <= p.temps[i].last && p.temps[i].first <= p.temps[k].last;
        if (from >= 0 && together && place < to && from < place + size) place = to, moved = true;
      }
    }
    out.offsets[own] = place;
    at = max(at, place + size);
  }
  out.bytes = at;
}

// Grows host and device memory for a layout; cached layouts are dropped when the memory moves.
inline bool make_room(Error& error, Context& c, const Layout& layout, bool resident) {
  if (layout.bytes <= c.bytes &&
      (resident || (layout.in_bytes <= c.in_bytes && layout.out_bytes <= c.out_bytes)))
    return true;
  forget(c);
  const int64_t in = max(layout.in_bytes, c.in_bytes), out = max(layout.out_bytes, c.out_bytes);
  const int64_t bytes = max(layout.bytes, c.bytes);
  if (c.memory) gpu.driver.free_device(c.memory);
  if (c.in) gpu.driver.free_host(c.in);
  if (c.out) gpu.driver.free_host(c.out);
  c.memory = 0, c.in = c.out = nullptr;
  c.bytes = c.in_bytes = c.out_bytes = 0;
  void *a = nullptr, *b = nullptr;
  if (resident) return allocate(error, bytes, &c.memory) && (c.bytes = bytes, true);
  if (!allocate(error, bytes, &c.memory) ||
      !good(error, gpu.driver.allocate_host(&a, static_cast<size_t>(in + 1), cu::kPortable),
            "give memory of the host"))
    return false;
  c.in = static_cast<char*>(a);
  if (!good(error, gpu.driver.allocate_host(&b, static_cast<size_t>(out + 1), cu::kPortable),
            "give memory of the host"))
    return false;
  c.out = static_cast<char*>(b);
  c.bytes = bytes, c.in_bytes = in, c.out_bytes = out;
  return true;
}

// Whether inputs are small enough for kernels to read them directly from host memory, which takes
// less time than a copy before the first kernel.
inline bool reads_inputs_anywhere(const Shared& s, int64_t bytes) {
  const Program& p = *s.program;
  if (!bytes || bytes > kMostRead) return false;
  for (int32_t i = 0; i < p.launch_count; ++i)
    for (int32_t k = 0; k < p.launches[i].count; ++k) {
      const Argument& a = p.launches[i].arguments[k];
      if (a.maps() && a.buffer < p.input_count && !s.constants[a.buffer]) return false;
    }
  return true;
}

// Whether outputs are small enough for kernels to write them directly to host memory, which takes
// less time than a copy after the last kernel.  What a second launch touches stays on the device.
inline bool writes_outputs_anywhere(const Shared& s, int64_t bytes) {
  const Program& p = *s.program;
  if (!bytes || bytes > kMostWritten) return false;
  for (int32_t output = p.input_count; output < p.tensor_count(); ++output) {
    int32_t calls = 0;
    for (int32_t i = 0; i < p.launch_count; ++i) {
      bool touches = false;
      for (const int32_t last = i + p.launches[i].others;; ++i) {  // alternatives of a call
        for (int32_t k = 0; k < p.launches[i].count; ++k)
          touches = touches || p.launches[i].arguments[k].buffer == output;
        if (i == last) break;
      }
      calls += touches;
    }
    if (calls != 1) return false;
  }
  return true;
}

// Returns the layout for sizes, from the cache or new; the least recently used one is evicted.
inline Layout* layout_for(Error& error, const Shared& s, Context& c, const int64_t* symbols,
                          const int64_t* sizes) {
  const Program& p = *s.program;
  int32_t oldest = 0;
  ++c.clock;
  for (int32_t i = 0; i < kMostKept; ++i) {
    Layout* held = c.layouts[i];
    if (held && !memcmp(held->symbols, symbols, static_cast<size_t>(p.symbol_count) * 8))
      return held->used = c.clock, held;
    if (!held || (c.layouts[oldest] && held->used < c.layouts[oldest]->used)) oldest = i;
  }
  Layout* made = static_cast<Layout*>(calloc(1, sizeof(Layout)));
  if (!made) return error.fail("There is no memory for a run."), nullptr;
  made->symbols = made->pool.array<int64_t>(p.symbol_count + 1);
  made->counts = made->pool.array<int64_t>(p.buffer_count());
  made->offsets = made->pool.array<int64_t>(p.buffer_count());
  made->launches = made->pool.array<Ready>(p.launch_count + 1);
  made->used = c.clock;
  bool ok = made->symbols && made->counts && made->offsets && made->launches;
  if (!ok) error.fail("There is no memory for a run.");
  if (ok && (ok = count_buffers(error, p, sizes, made->counts))) {
    memcpy(made->symbols, symbols, static_cast<size_t>(p.symbol_count) * 8);
    lay_out(s, *made);
    ok = make_room(error, c, *made, s.resident);
  }
  made->direct = ok && !s.resident && reads_inputs_anywhere(s, made->in_bytes);
  made->written = ok && !s.resident && writes_outputs_anywhere(s, made->out_bytes);
  auto address = [&](int32_t buffer) {
    if (s.constants[buffer]) return s.constants[buffer];
    const uint64_t offset = static_cast<uint64_t>(made->offsets[buffer]);
    if (made->direct && buffer < p.input_count) return reinterpret_cast<cu::Address>(c.in) + offset;
    if (made->written && buffer >= p.input_count && buffer < p.tensor_count())
      return reinterpret_cast<cu::Address>(c.out) + offset - static_cast<uint64_t>(made->out_first);
    return c.memory + offset;
  };
  for (int32_t i = 0; ok && i < p.launch_count; ++i) {
    if (s.once[i]) continue;
    i = chosen(p, s.functions, i, sizes, address);
    ok = make_ready(error, *s.device, p.launches[i], s.functions[i], sizes, made->counts,
                    s.constants, address, made->pool, &made->launches[i]);
    i += p.launches[i].others;
  }
  if (!ok) return release(made), nullptr;
  release(c.layouts[oldest]);
  return c.layouts[oldest] = made;
}

// Adds a copy node between host and device to a graph.
inline cu::Copy3D copy_of(const void* from, cu::Address device, void* to, int64_t bytes) {
  cu::Copy3D copy = {};
  copy.from_type = from ? cu::kHost : cu::kDevice;
  copy.to_type = from ? cu::kDevice : cu::kHost;
  copy.from_host = from, copy.from_device = from ? 0 : device;
  copy.to_host = to, copy.to_device = from ? device : 0;
  copy.width = static_cast<size_t>(bytes);
  copy.height = copy.depth = copy.from_height = copy.to_height = 1;
  copy.from_pitch = copy.to_pitch = copy.width;
  return copy;
}

// Builds a graph: copies in, launches in order, copies out.  Edges between kernels are programmatic:
// a kernel may start early and waits for its predecessor itself.
class Row {
 public:
  Row(Error& error, const Device& device, cu::Graph graph)
      : error_(error), device_(device), graph_(graph) {}

  bool copy(const cu::Copy3D& copy) {
    if (!copy.width) return true;
    cu::Node node = nullptr;
    return good(error_, gpu.driver.add_copy(&node, graph_, nullptr, 0, &copy, device_.context),
                "add a copy to a graph") &&
           link(node, false);
  }
  bool kernel(const Ready& r) {
    if (!r.parameters) return true;
    cu::KernelNode node = {};
    node.function = r.function;
    memcpy(node.grid, r.grid, sizeof node.grid);
    node.block[0] = static_cast<unsigned>(r.threads), node.block[1] = node.block[2] = 1;
    node.shared = static_cast<unsigned>(r.shared);
    node.parameters = r.parameters;
    cu::Node made = nullptr;
    return good(error_, gpu.driver.add_kernel(&made, graph_, nullptr, 0, &node),
                "add a kernel to a graph") &&
           link(made, true);
  }

 private:
  bool link(cu::Node node, bool kernel) {
    cu::EdgeData edge = {};
    if (kernel && kernel_ && device_.dependents) edge.from_port = 1, edge.type = 1;
    const bool ok = !last_ || good(error_, gpu.driver.add_edges(graph_, &last_, &node, &edge, 1),
                                   "order a graph");
    last_ = node, kernel_ = kernel;
    return ok;
  }

  Error& error_;
  const Device& device_;
  cu::Graph graph_;
  cu::Node last_ = nullptr;
  bool kernel_ = false;
};

inline bool build_graph(Error& error, const Shared& s, Context& c, Layout& l) {
  if (!good(error, gpu.driver.create_graph(&l.graph, 0), "make a graph")) return false;
  Row row(error, *s.device, l.graph);
  if (!s.resident && !l.direct && !row.copy(copy_of(c.in, c.memory, nullptr, l.in_bytes)))
    return false;
  for (int32_t i = 0; i < s.program->launch_count; ++i)
    if (!row.kernel(l.launches[i])) return false;
  const cu::Address results = c.memory + static_cast<uint64_t>(l.out_first);
  return (s.resident || l.written || row.copy(copy_of(nullptr, results, c.out, l.out_bytes))) &&
         good(error, gpu.driver.instantiate(&l.exec, l.graph, 0), "make a graph ready");
}

// Inputs and outputs are in pinned host memory.
inline bool execute(Error& error, const Shared& s, Context& c, Layout& l) {
  const cu::Driver& d = gpu.driver;
  if (l.runs == 1 && !build_graph(error, s, c, l)) return false;
  ++l.runs;
  if (l.exec) {
    if (!good(error, d.launch_graph(l.exec, c.stream), "start a graph")) return false;
  } else {  // first run of these sizes, possibly the only one: no graph
    if (l.in_bytes && !l.direct && !good(error, d.upload_async(c.memory, c.in, static_cast<size_t>(l.in_bytes),
                                                  c.stream), "take inputs"))
      return false;
    for (int32_t i = 0; i < s.program->launch_count; ++i)
      if (!start(error, l.launches[i], c.stream)) return false;
    const cu::Address results = c.memory + static_cast<uint64_t>(l.out_first);
    if (l.out_bytes && !l.written && !good(error, d.download_async(c.out, results, static_cast<size_t>(l.out_bytes),
                                                     c.stream), "give results"))
      return false;
  }
  return good(error, d.wait_for_stream(c.stream), "finish a run");
}

// Launches asynchronously on ONNX Runtime's stream, without a graph of its own, because ONNX
// Runtime may be capturing that stream.
inline bool enqueue(Error& error, const Shared& s, Context& c, Layout& l) {
  const cu::Driver& d = gpu.driver;
  int capturing = 0;
  if (!good(error, d.capture_status(c.stream, &capturing), "describe a stream")) return false;
  if (!capturing && l.runs++ == 1 && !build_graph(error, s, c, l)) return false;
  if (l.exec && !capturing) return good(error, d.launch_graph(l.exec, c.stream), "start a graph");
  for (int32_t i = 0; i < s.program->launch_count; ++i)
    if (!start(error, l.launches[i], c.stream)) return false;
  return true;
}

}  // namespace tracea
