// One run of a program: memory layout, launches, and the CUDA graph built from them.
#pragma once
#include "runtime/launch.h"
#include "runtime/pinned.h"

namespace tracea {

constexpr int64_t kAlign = 256;
constexpr int32_t kMostKept = 32;  // layouts cached by a context
constexpr int32_t kMostPlaced = 2;  // of these, layouts of equal sizes for tensors at other addresses
constexpr int64_t kMostRead = 16 << 10;  // bytes of inputs that kernels read from host memory
constexpr int64_t kMostWritten = 256 << 10;  // and of outputs that kernels write to host memory

constexpr int64_t kMemoryStep = 2 << 20;  // the driver gives large blocks of memory in such steps

// Whether inputs or outputs may take more than one block of pinned memory.  Their copies are in no
// graph, so that blocks can be added between runs.
inline bool are_large(int64_t bytes) { return bytes > kBlock; }

inline int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlign) * kAlign; }

// A program instantiated for concrete sizes in one context.
struct Layout {
  int64_t* symbols;
  cu::Address* tensors;  // inputs and outputs that launches use where the caller has them; 0: others
  int64_t *counts, *offsets;  // sizes of buffers, and offsets in the context's arena; -1: not there
  int64_t in_bytes, out_bytes, out_first, bytes;
  bool direct;  // kernels read inputs directly from host memory
  bool written;  // and write outputs directly to host memory
  Ready* launches;
  cu::Node* nodes;  // of the launches in the graph
  cu::Graph graph;
  cu::Exec exec;
  uint64_t used;
  int64_t runs;
  cu::Address records;  // of blocks, see runtime/block_times.h
  int64_t record_count;
  Pool pool;
};

// Memory that a graph of ONNX Runtime still refers to.
struct Retired {
  cu::Address memory;
  Retired* next;
};

// Resources of one run at a time: a stream, a device arena and pinned host memory.
struct Context {
  cu::Stream stream;
  bool borrowed;  // the stream belongs to ONNX Runtime
  bool alone;     // no other run of the node was in progress when the run began
  bool captured;  // ONNX Runtime has captured launches that use the arena
  Retired* retired;
  cu::Address memory;
  int64_t bytes;
  Pinned in, out, ended;  // `ended`: the number of runs that have ended
  uint32_t started;       // the number of runs that write there
  cu::Event events[kSlots];  // the ends of copies; null until something large is copied
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
  if (layout->records) gpu.driver.free_device(layout->records);
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
  while (Retired* old = c->retired) {
    c->retired = old->next;
    gpu.driver.free_device(old->memory);
    free(old);
  }
  c->in.release(), c->out.release(), c->ended.release();
  for (cu::Event event : c->events)
    if (event) gpu.driver.destroy_event(event);
  if (c->stream && !c->borrowed) gpu.driver.destroy_stream(c->stream);
  free(c);
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
    counts[i] = count * bytes_per_element(type_of(p, i));
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
    const bool elsewhere = s.constants[i] || (out.tensors && out.tensors[i]);
    out.offsets[i] = elsewhere ? -1 : at;
    at += elsewhere ? 0 : bytes(i);
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

// Grows the arena.  What ONNX Runtime has captured still refers to the old one.
inline bool grow_arena(Error& error, Context& c, int64_t bytes) {
  if (bytes > kMemoryStep) bytes = ceil_div(bytes, kMemoryStep) * kMemoryStep;
  if (c.memory && c.captured) {
    Retired* old = static_cast<Retired*>(calloc(1, sizeof(Retired)));
    if (!old) return error.fail("There is no memory for a run.");
    *old = {c.memory, c.retired};
    c.retired = old;
  } else if (c.memory) {
    gpu.driver.free_device(c.memory);
  }
  c.memory = 0, c.bytes = 0;
  return allocate(error, bytes, &c.memory) && (c.bytes = bytes, true);
}

// Grows host and device memory for a layout; cached layouts are dropped when memory moves.
inline bool make_room(Error& error, Context& c, const Layout& layout, bool resident) {
  const int64_t in = min(layout.in_bytes, kBlock), out = min(layout.out_bytes, kBlock);
  const bool fits = c.memory && layout.bytes <= c.bytes;
  const bool staged = resident || (c.in.count && c.in.holds(in) && c.out.count && c.out.holds(out));
  if (!fits || !staged) forget(c);
  if (!fits && !grow_arena(error, c, layout.bytes)) return false;
  if (!staged && !(c.in.grow(error, in) && c.out.grow(error, out))) return false;
  const bool large = !resident && (are_large(layout.in_bytes) || are_large(layout.out_bytes));
  for (cu::Event& event : c.events)
    if (large && !event &&
        !good(error, gpu.driver.create_event(&event, cu::kUntimed), "make an event"))
      return false;
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

inline cu::Address address_of(const Shared& s, const Context& c, const Layout& l, int32_t buffer) {
  const Program& p = *s.program;
  if (s.constants[buffer]) return s.constants[buffer];
  const bool tensor = buffer < p.tensor_count(), input = buffer < p.input_count;
  if (tensor && l.tensors[buffer]) return l.tensors[buffer];
  const uint64_t offset = static_cast<uint64_t>(l.offsets[buffer]);
  if (l.direct && input) return reinterpret_cast<cu::Address>(c.in.first()) + offset;
  if (l.written && tensor && !input)
    return reinterpret_cast<cu::Address>(c.out.first()) + offset - static_cast<uint64_t>(l.out_first);
  return c.memory + offset;
}

// Lets the launches of a layout, and the nodes of its graph, use tensors at other addresses.  All
// are aligned alike, so that each launch keeps its kernel.
inline bool move_tensors(Error& error, const Shared& s, const Context& c, Layout& l,
                         const int64_t* sizes, const cu::Address* tensors) {
  const Program& p = *s.program;
  auto moved = [&](const Argument& a) {
    return a.addresses() && a.buffer >= 0 && a.buffer < p.tensor_count() &&
           tensors[a.buffer] != l.tensors[a.buffer];
  };
  auto address = [&](int32_t buffer) {
    const bool given = buffer < p.tensor_count() && tensors[buffer];
    return given ? tensors[buffer] : address_of(s, c, l, buffer);
  };
  for (int32_t i = 0; i < p.launch_count; ++i) {
    const Launch& launch = p.launches[i];
    const Ready& ready = l.launches[i];
    bool touched = false;
    for (int32_t k = 0; ready.parameters && k < launch.count; ++k) {
      if (!moved(launch.arguments[k])) continue;
      touched = true;
      if (!write_argument(error, launch.arguments[k], sizes, l.counts, s.constants, address,
                          static_cast<char*>(ready.parameters[k])))
        return false;
    }
    if (!touched || !l.exec) continue;
    const cu::KernelNode node = node_of(ready);
    if (!good(error, gpu.driver.update_kernel(l.exec, l.nodes[i], &node), "change a graph"))
      return false;
  }
  return memcpy(l.tensors, tensors, static_cast<size_t>(p.tensor_count()) * sizeof *tensors), true;
}

// Finds the layout for sizes and addresses of tensors.  If there are several for these sizes, the
// least recently used of them will do: `move_tensors` adapts it.
inline Layout* held_layout(const Shared& s, const Context& c, const int64_t* symbols,
                           const cu::Address* tensors) {
  const Program& p = *s.program;
  Layout* found = nullptr;
  int32_t count = 0;
  for (Layout* held : c.layouts) {
    if (!held || memcmp(held->symbols, symbols, static_cast<size_t>(p.symbol_count) * 8)) continue;
    bool same = true, fits = true;
    for (int32_t i = 0; tensors && i < p.tensor_count(); ++i) {
      same = same && held->tensors[i] == tensors[i];
      fits = fits && !held->tensors[i] == !tensors[i];
    }
    if (same) return held;
    if (!fits) continue;
    ++count;
    if (!found || held->used < found->used) found = held;
  }
  return count < kMostPlaced ? nullptr : found;
}

// A layout for sizes and addresses, with its launches.
inline Layout* new_layout(Error& error, const Shared& s, Context& c, const int64_t* symbols,
                          const int64_t* sizes, const cu::Address* tensors) {
  const Program& p = *s.program;
  Layout* made = static_cast<Layout*>(calloc(1, sizeof(Layout)));
  if (!made) return error.fail("There is no memory for a run."), nullptr;
  made->symbols = made->pool.array<int64_t>(p.symbol_count + 1);
  made->tensors = made->pool.array<cu::Address>(p.tensor_count());
  made->counts = made->pool.array<int64_t>(p.buffer_count());
  made->offsets = made->pool.array<int64_t>(p.buffer_count());
  made->launches = made->pool.array<Ready>(p.launch_count + 1);
  made->nodes = made->pool.array<cu::Node>(p.launch_count + 1);
  bool ok = made->symbols && made->tensors && made->counts && made->offsets && made->launches &&
            made->nodes;
  if (!ok) error.fail("There is no memory for a run.");
  if (ok && (ok = count_buffers(error, p, sizes, made->counts))) {
    memcpy(made->symbols, symbols, static_cast<size_t>(p.symbol_count) * 8);
    for (int32_t i = 0; tensors && i < p.tensor_count(); ++i) made->tensors[i] = tensors[i];
    lay_out(s, *made);
    ok = make_room(error, c, *made, s.resident);
  }
  made->direct = ok && !s.resident && reads_inputs_anywhere(s, made->in_bytes);
  made->written = ok && !s.resident && writes_outputs_anywhere(s, made->out_bytes);
  auto address = [&](int32_t buffer) { return address_of(s, c, *made, buffer); };
  for (int32_t i = 0; ok && i < p.launch_count; ++i) {
    if (s.once[i]) continue;
    i = chosen(p, s.functions, i, sizes, address);
    ok = make_ready(error, *s.device, p.launches[i], s.functions[i], sizes, made->counts,
                    s.constants, address, made->pool, &made->launches[i]);
    i += p.launches[i].others;
  }
  if (!ok) return release(made), nullptr;
  return made;
}

// Sizes that repeat have pages locked for them, a block in each run, until pinned memory holds all of
// their tensors: a run takes less time then, but to lock all at once would stall one of them.  The
// second run of a size makes its graph and locks nothing.
inline bool add_block(Error& error, Context& c, const Layout& l) {
  if (l.runs == 1) return true;
  if (!c.out.holds(l.out_bytes)) return c.out.add(error);
  return c.in.holds(l.in_bytes) || c.in.add(error);
}

// Returns the layout for sizes, from the cache or new; the least recently used one is evicted.
// `tensors`: where launches use inputs and outputs, 0 for those in the arena; null: all are there.
inline Layout* layout_for(Error& error, const Shared& s, Context& c, const int64_t* symbols,
                          const int64_t* sizes, const cu::Address* tensors) {
  Layout* found = held_layout(s, c, symbols, tensors);
  if (found) {
    if (tensors && !move_tensors(error, s, c, *found, sizes, tensors)) return nullptr;
    if (!s.resident && !add_block(error, c, *found)) return nullptr;
  } else {
    found = new_layout(error, s, c, symbols, sizes, tensors);  // may evict all others
    if (!found) return nullptr;
    Layout** oldest = c.layouts;
    for (Layout*& held : c.layouts)
      if (*oldest && (!held || held->used < (*oldest)->used)) oldest = &held;
    release(*oldest);
    *oldest = found;
  }
  found->used = ++c.clock;
  return found;
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
  bool kernel(const Ready& r, cu::Node* made) {
    if (!r.parameters) return true;
    const cu::KernelNode node = node_of(r);
    return good(error_, gpu.driver.add_kernel(made, graph_, nullptr, 0, &node),
                "add a kernel to a graph") &&
           link(*made, true);
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
  if (!s.resident && !l.direct && !are_large(l.in_bytes) &&
      !row.copy(copy_of(c.in.first(), c.memory, nullptr, l.in_bytes)))
    return false;
  for (int32_t i = 0; i < s.program->launch_count; ++i)
    if (!row.kernel(l.launches[i], &l.nodes[i])) return false;
  const cu::Address results = c.memory + static_cast<uint64_t>(l.out_first);
  return (s.resident || l.written || are_large(l.out_bytes) ||
          row.copy(copy_of(nullptr, results, c.out.first(), l.out_bytes))) &&
         good(error, gpu.driver.instantiate(&l.exec, l.graph, 0), "make a graph ready");
}

// Starts a run without a graph: the first one of its sizes, and possibly the only one.
inline bool start_once(Error& error, const Shared& s, Context& c, Layout& l) {
  const cu::Driver& d = gpu.driver;
  if (l.in_bytes && !l.direct && !are_large(l.in_bytes) &&
      !good(error, d.upload_async(c.memory, c.in.first(), static_cast<size_t>(l.in_bytes), c.stream),
            "take inputs"))
    return false;
  for (int32_t i = 0; i < s.program->launch_count; ++i)
    if (!start(error, l.launches[i], c.stream)) return false;
  const cu::Address results = c.memory + static_cast<uint64_t>(l.out_first);
  return !l.out_bytes || l.written || are_large(l.out_bytes) ||
         good(error,
              d.download_async(c.out.first(), results, static_cast<size_t>(l.out_bytes), c.stream),
              "give results");
}

inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

// Waits until a run has ended: for a number that the stream writes to pinned memory behind it, which
// is seen 2 µs before the driver's own wait returns.  That one takes over where a run takes long, and
// where the stream or the GPU failed.  Runs that share the GPU wait there as well: to write a number
// costs 4 % of MiniLM's runs per second.
inline bool wait_for_run(Error& error, Context& c) {
  constexpr int32_t kMostReads = 1 << 14;  // about a millisecond
  if (!c.alone) return good(error, gpu.driver.wait_for_stream(c.stream), "finish a run");
  if (!c.ended.count && !c.ended.add(error, kAlign)) return false;
  uint32_t* const ended = reinterpret_cast<uint32_t*>(c.ended.first());
  if (!c.started) *ended = 0;
  const cu::Address at = reinterpret_cast<cu::Address>(ended);
  if (!gpu.driver.write_value(c.stream, at, ++c.started, 0))
    for (int32_t i = 0; i < kMostReads; ++i) {
      if (__atomic_load_n(ended, __ATOMIC_ACQUIRE) == c.started) return true;
      pause_processor();
    }
  return good(error, gpu.driver.wait_for_stream(c.stream), "finish a run");
}

// Runs a layout.  Inputs and outputs are in pinned memory; large ones are on the device: the inputs
// already, and the outputs once the stream has computed them.
inline bool execute(Error& error, const Shared& s, Context& c, Layout& l) {
  const cu::Driver& d = gpu.driver;
  if (l.runs == 1 && !build_graph(error, s, c, l)) return false;
  ++l.runs;
  const bool started = l.exec ? good(error, d.launch_graph(l.exec, c.stream), "start a graph")
                              : start_once(error, s, c, l);
  const bool later = are_large(l.out_bytes) && !kTimed;  // the wait for the outputs' first part
  return started && (later || wait_for_run(error, c));
}

// Launches asynchronously on ONNX Runtime's stream, without a graph of its own, because ONNX
// Runtime may be capturing that stream.
inline bool enqueue(Error& error, const Shared& s, Context& c, Layout& l) {
  const cu::Driver& d = gpu.driver;
  int capturing = 0;
  if (!good(error, d.capture_status(c.stream, &capturing), "describe a stream")) return false;
  c.captured = c.captured || capturing;
  if (!capturing && l.runs++ == 1 && !build_graph(error, s, c, l)) return false;
  if (l.exec && !capturing) return good(error, d.launch_graph(l.exec, c.stream), "start a graph");
  for (int32_t i = 0; i < s.program->launch_count; ++i)
    if (!start(error, l.launches[i], c.stream)) return false;
  return true;
}

}  // namespace tracea
