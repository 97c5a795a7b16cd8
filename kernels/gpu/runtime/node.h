// A node: a decoded program, its constants on the device, and a pool of contexts for concurrent runs.
#pragma once
#include "runtime/block_times.h"
#include "runtime/staging.h"

namespace tracea {

constexpr cu::Address kNowhere = 1;  // address of a constant that no run reads

struct Node {
  const char* type;
  const OrtApi* api;
  bool dims_by_reference;
  Program program;
  Shared shared;
  Weight** weights;  // one for each constant input
  Prepared* made;    // results computed from them when the node was created
  Context* idle;
  int32_t running;  // contexts that are taken
  pthread_mutex_t mutex;
};

// A constant input as ONNX Runtime holds it; data is null if the input is not constant.
struct Constant {
  const void* data;
  int64_t bytes;
  uint64_t digest[2];  // set if a launch reads it
};

inline bool find_constants(Outcome& run, const Program& p, const OrtKernelInfo* info, Constant* out) {
  for (int32_t i = 0; i < p.input_count; ++i) {
    bool found;
    ConstantInput input;
    if (!find_constant(run, info, p, i, &found, &input)) return false;
    if (!found) continue;
    static const char nothing = 0;
    out[i].data = input.data ? input.data : &nothing;
    out[i].bytes = input.count * bytes_per_element(p.tensors[i].type);
  }
  return true;
}

// Sizes that depend on no symbol.
inline void find_numbers(const Program& p, bool* number) {
  for (int32_t i = 0; i < p.size_count; ++i) {
    const Size& size = p.sizes[i];
    number[i] = size.op == kNumber || (size.op != kSymbol && number[size.a] && number[size.b]);
  }
}

// Finds the launches that depend on constants alone and therefore run once.  `fixed` marks buffers
// whose content is the same in every run.
inline void find_once(const Program& p, const Constant* constants, const bool* number, bool* once,
                      bool* fixed) {
  const int32_t tensors = p.tensor_count();
  for (int32_t i = 0; i < p.buffer_count(); ++i)
    fixed[i] = i < p.input_count ? constants[i].data != nullptr
                                 : i >= tensors && number[p.temps[i - tensors].count];
  for (int32_t i = 0; i < p.launch_count; ++i) once[i] = true;
  auto alone = [&](const Launch& launch) {
    bool own = number[launch.when];
    for (int32_t extent : launch.grid) own = own && number[extent];
    for (int32_t k = 0; k < launch.count; ++k) {
      const Argument& a = launch.arguments[k];
      if (a.kind == Argument::kReal || a.kind == Argument::kFixed ||
          (a.kind == Argument::kPointer && a.buffer < 0))
        continue;
      own = own && number[a.value];
      if (a.addresses()) own = own && fixed[a.buffer] && number[a.span];
    }
    return own;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (int32_t first = 0, end; first < p.launch_count; first = end) {
      end = first + p.launches[first].others + 1;  // alternatives of one launch
      bool own = once[first];
      for (int32_t i = first; i < end; ++i) own = own && alone(p.launches[i]);
      if (own) continue;
      changed = changed || once[first];
      for (int32_t i = first; i < end; ++i) {
        const Launch& launch = p.launches[i];
        once[i] = false;
        for (int32_t k = 0; k < launch.count; ++k) {
          const Argument& a = launch.arguments[k];
          if (!a.addresses() || a.buffer < tensors || !a.written) continue;
          changed = changed || fixed[a.buffer];
          fixed[a.buffer] = false;
        }
      }
    }
  }
}

// Computes the digests of the constants that launches read.
inline bool digest_constants(Outcome& run, const Program& p, const bool* read, Constant* constants,
                             Pool& pool) {
  Digests digests = {pool.array<Digested>(p.input_count), 0, nullptr, 0, 0};
  if (!digests.items) return run.error.fail("There is no memory for a node.");
  for (int32_t i = 0; i < p.input_count; ++i) {
    Constant& constant = constants[i];
    if (!constant.data || !read[i]) continue;
    digests.items[digests.count++] = {constant.data, constant.bytes, constant.digest, digests.total};
    digests.total += Digests::parts_of(constant.bytes);
  }
  digests.parts = pool.array<uint64_t>(2 * digests.total + 1);
  if (!digests.parts) return run.error.fail("There is no memory for a node.");
  return digests.run(), true;
}

// State used while a node is created.
struct Opening {
  Constant* constants;
  bool *number, *fixed;
  bool *once, *later;  // buffers touched by launches that run once, and by those of every run
  int64_t *sizes, *bytes;
  uint64_t digest[2];
};

inline bool look_at(Outcome& run, Node& node, const OrtKernelInfo* info, const int64_t* words,
                    int64_t count, Pool& pool, Opening& o) {
  const Program& p = node.program;
  const int32_t buffers = p.buffer_count();
  o.constants = pool.array<Constant>(p.input_count);
  o.number = pool.array<bool>(p.size_count + 1);
  o.fixed = pool.array<bool>(buffers), o.once = pool.array<bool>(buffers);
  o.later = pool.array<bool>(buffers), o.bytes = pool.array<int64_t>(buffers);
  o.sizes = pool.array<int64_t>(p.size_count + 1);
  int64_t* symbols = pool.array<int64_t>(p.symbol_count + 1);
  if (!o.constants || !o.number || !o.fixed || !o.once || !o.later || !o.bytes || !o.sizes ||
      !symbols)
    return run.error.fail("There is no memory for a node.");
  if (!find_constants(run, p, info, o.constants)) return false;
  find_numbers(p, o.number);
  find_once(p, o.constants, o.number, node.shared.once, o.fixed);
  evaluate(p, symbols, o.sizes);
  for (int32_t i = 0; i < buffers; ++i) {
    const int32_t temp = i - p.tensor_count();
    o.bytes[i] = temp < 0 ? 1 : max(o.sizes[p.temps[temp].count], 0);
    for (int32_t a = 0; temp < 0 && a < p.tensors[i].rank; ++a)
      o.bytes[i] *= max(o.sizes[p.tensors[i].dims[a]], 0);
    o.bytes[i] *= bytes_per_element(type_of(p, i));
  }
  for (int32_t i = 0; i < p.launch_count; ++i)
    for (int32_t k = 0; k < p.launches[i].count; ++k) {
      const Argument& a = p.launches[i].arguments[k];
      if (a.addresses() && a.buffer >= 0)
        (node.shared.once[i] ? o.once : o.later)[a.buffer] = true;
    }
  digest_of(words, count * 8, o.digest);
  if (node.shared.resident) {  // constants stay in ONNX Runtime's device memory and are not shared
    static uint64_t counter = 0;
    o.digest[0] = reinterpret_cast<uint64_t>(&node);
    o.digest[1] = __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
    return true;
  }
  bool* const read = pool.array<bool>(p.input_count);
  if (!read) return run.error.fail("There is no memory for a node.");
  for (int32_t i = 0; i < p.input_count; ++i) read[i] = o.once[i] || o.later[i];
  if (!digest_constants(run, p, read, o.constants, pool)) return false;
  for (int32_t i = 0; i < p.input_count; ++i) {
    const Constant& constant = o.constants[i];
    if (!constant.data || !o.once[i]) continue;
    o.digest[0] = (o.digest[0] ^ constant.digest[0]) * 0xff51afd7ed558ccdu;
    o.digest[1] = (o.digest[1] + constant.digest[1]) * 0xc4ceb9fe1a85ec53u;
  }
  return true;
}

inline bool take(Outcome& run, Node& node, const Opening& o, const bool* wanted) {
  for (int32_t i = 0; i < node.program.input_count; ++i) {
    if (!o.constants[i].data || !wanted[i] || node.weights[i]) continue;
    if (node.shared.resident) {
      node.shared.constants[i] = reinterpret_cast<cu::Address>(o.constants[i].data);
      continue;
    }
    const Constant& constant = o.constants[i];
    node.weights[i] = take_weight(run.error, *node.shared.device, constant.data, constant.bytes, constant.digest);
    if (!node.weights[i]) return false;
    node.shared.constants[i] = node.weights[i]->address;
  }
  return true;
}

// Runs the launches that run once.  Buffers that later launches read are kept in `made`.
inline bool make(Outcome& run, Node& node, const Opening& o, Pool& pool, Prepared& made) {
  const Program& p = node.program;
  cu::Stream stream = nullptr;
  // an upload returns once its source may be reused, which is before the copy has finished
  if (!take(run, node, o, o.once) ||
      !good(run.error, gpu.driver.wait_for_stream(nullptr), "take weights") ||
      !good(run.error, gpu.driver.create_stream(&stream, cu::kNonBlocking), "make a stream"))
    return false;
  cu::Address* addresses = pool.array<cu::Address>(p.buffer_count());
  bool ok = addresses || run.error.fail("There is no memory for a node.");
  for (int32_t i = 0; ok && i < p.buffer_count(); ++i) {
    addresses[i] = node.shared.constants[i];
    const int32_t temp = i - p.tensor_count();
    if (temp < 0 || !o.fixed[i] || !o.once[i]) continue;
    ok = allocate(run.error, o.bytes[i], &addresses[i]);
    if (ok) made.temps[temp] = addresses[i];
  }
  auto address = [&](int32_t buffer) { return addresses[buffer]; };
  for (int32_t i = 0; ok && i < p.launch_count; ++i) {
    Ready ready;
    if (!node.shared.once[i]) continue;
    i = chosen(p, node.shared.functions, i, o.sizes, address);
    ok = make_ready(run.error, *node.shared.device, p.launches[i], node.shared.functions[i],
                    o.sizes, o.bytes, nullptr, address, pool, &ready) &&
         start(run.error, ready, stream);
    i += p.launches[i].others;
  }
  ok = good(run.error, gpu.driver.wait_for_stream(stream), "prepare weights") && ok;
  gpu.driver.destroy_stream(stream);
  for (int32_t i = 0; i < p.temp_count; ++i)
    if (made.temps[i] && !(ok && o.later[p.tensor_count() + i])) {
      gpu.driver.free_device(made.temps[i]);
      made.temps[i] = 0;
    }
  for (int32_t i = 0; i < p.input_count; ++i)
    if (node.weights[i] && !o.later[i]) release_weight(*node.shared.device, node.weights[i]), node.weights[i] = nullptr;
  return ok;
}

// Takes results computed from constants from a node with the same plan and weights, or computes them.
inline bool prepare_constants(Outcome& run, Node& node, const Opening& o, Pool& pool) {
  const Program& p = node.program;
  Device& device = *node.shared.device;
  Lock lock(device.preparing);
  Prepared* held = device.prepared;
  while (held && (held->digest[0] != o.digest[0] || held->digest[1] != o.digest[1] ||
                  held->count != p.temp_count))
    held = held->next;
  if (!held) {
    const size_t room = sizeof(Prepared) + static_cast<size_t>(p.temp_count) * sizeof(cu::Address);
    held = static_cast<Prepared*>(calloc(1, room));
    if (!held) return run.error.fail("There is no memory for a node.");
    held->temps = reinterpret_cast<cu::Address*>(held + 1);
    held->count = p.temp_count;
    held->digest[0] = o.digest[0], held->digest[1] = o.digest[1];
    if (!make(run, node, o, pool, *held)) return free(held), false;
    held->next = device.prepared;
    device.prepared = held;
  }
  ++held->users;
  node.made = held;
  for (int32_t i = 0; i < p.temp_count; ++i)
    if (held->temps[i]) node.shared.constants[p.tensor_count() + i] = held->temps[i];
  return true;
}

inline void release_prepared(Device& device, Prepared* made) {
  if (!made) return;
  Lock lock(device.preparing);
  if (--made->users) return;
  for (Prepared** at = &device.prepared; *at; at = &(*at)->next)
    if (*at == made) {
      *at = made->next;
      break;
    }
  for (int32_t i = 0; i < made->count; ++i)
    if (made->temps[i]) gpu.driver.free_device(made->temps[i]);
  free(made);
}

inline bool open_node(Outcome& run, Node& node, const OrtKernelInfo* info, const int64_t* words,
                      int64_t count) {
  Program& p = node.program;
  Shared& s = node.shared;
  s.program = &p;
  s.functions = p.pool.array<cu::Function>(p.launch_count + 1);
  s.constants = p.pool.array<cu::Address>(p.buffer_count());
  s.once = p.pool.array<bool>(p.launch_count + 1);
  node.weights = p.pool.array<Weight*>(p.input_count);
  if (!s.functions || !s.constants || !s.once || !node.weights)
    return run.error.fail("There is no memory for a node.");
  if (!enter(run.error, *s.device)) return false;
  for (int32_t i = 0; i < p.launch_count; ++i)
    if (!load_kernel(run.error, *s.device, p.launches[i].kernel, p.launches[i].shared, &s.functions[i]))
      return false;
    else if (!s.functions[i] && !p.launches[i].others)
      return run.error.fail("This library has no kernel for this GPU.");
  Pool pool;
  Opening o = {};
  const bool ok = look_at(run, node, info, words, count, pool, o) &&
                  prepare_constants(run, node, o, pool) && take(run, node, o, o.later) &&
                  good(run.error, gpu.driver.wait_for_stream(nullptr), "take weights");
  // skip inputs that no launch of a run reads
  for (int32_t i = 0; ok && i < p.input_count; ++i)
    if (o.constants[i].data && !s.constants[i]) s.constants[i] = kNowhere;
  pool.release();
  return ok;
}

inline void close_node(Node& node) {
  Error error;
  Device* const device = node.shared.device;
  if (node.shared.program && device->context && enter(error, *device)) {
    while (Context* c = node.idle) node.idle = c->next, release(c);
    for (int32_t i = 0; node.weights && i < node.program.input_count; ++i)
      release_weight(*device, node.weights[i]);
    release_prepared(*device, node.made);
  }
  pthread_mutex_destroy(&node.mutex);
  node.program.pool.release();
}

// Acquires a context for a run.  `stream` is null or ONNX Runtime's, which orders its runs.
inline Context* idle_or_new_context(Error& error, Node& node, cu::Stream stream) {
  {
    Lock lock(node.mutex);
    for (Context** at = &node.idle; *at; at = &(*at)->next)
      if (!node.shared.resident || (*at)->stream == stream) {
        Context* const found = *at;
        return *at = found->next, found;
      }
  }
  Context* made = static_cast<Context*>(calloc(1, sizeof(Context)));
  if (!made) return error.fail("There is no memory for a run."), nullptr;
  if (node.shared.resident) return made->stream = stream, made->borrowed = true, made;
  if (good(error, gpu.driver.create_stream(&made->stream, cu::kNonBlocking), "make a stream"))
    return made;
  return free(made), nullptr;
}

inline Context* take_context(Error& error, Node& node, cu::Stream stream) {
  Context* const found = idle_or_new_context(error, node, stream);
  if (found) found->alone = __atomic_fetch_add(&node.running, 1, __ATOMIC_RELAXED) == 0;
  return found;
}

// Gives a context back after a run, or releases it after one that failed.
inline void give_context(Node& node, Context* c, bool usable) {
  __atomic_fetch_sub(&node.running, 1, __ATOMIC_RELAXED);
  if (!usable) return release(c);
  Lock lock(node.mutex);
  c->next = node.idle;
  node.idle = c;
}

// Addresses and shapes of one run's inputs, without the constant ones.
struct Given {
  void** data;
  int64_t* dims;  // [inputs][kMaxRank]
  bool* repeats;  // inputs with a broadcast axis of size 1
};

inline bool bind_inputs(Outcome& run, const Node& node, OrtKernelContext* context, int64_t* symbols,
                        int64_t* sizes, const Given& given) {
  const Program& p = node.program;
  for (int32_t i = 0; i < p.input_count; ++i) {
    if (node.shared.constants[i]) continue;
    const OrtValue* value = nullptr;
    if (!run.good(ort::KernelContext_GetInput(run.api, context, static_cast<size_t>(i), &value)))
      return false;
    if (!value) return run.error.fail("Input %d is missing.", i);
    if (!read_dims(run, value, i, p.tensors[i].rank, given.dims + i * kMaxRank) ||
        !run.good(ort::GetTensorMutableData(run.api, const_cast<OrtValue*>(value), &given.data[i])))
      return false;
  }
  for (int32_t s = 0; s < p.symbol_count; ++s) symbols[s] = symbol_value(p, given.dims, s,
                              [&](int32_t i) { return node.shared.constants[i] != 0; });
  evaluate(p, symbols, sizes);
  for (int32_t i = 0; i < p.input_count; ++i)
    for (int32_t axis = 0; !node.shared.constants[i] && axis < p.tensors[i].rank; ++axis) {
      const Tensor& tensor = p.tensors[i];
      const int64_t wanted = sizes[tensor.dims[axis]], actual = given.dims[i * kMaxRank + axis];
      if (wanted == actual) continue;
      if (actual != 1 || wanted < 0 || !(tensor.loose >> axis & 1))
        return run.error.fail("Input %d has size %lld at axis %d, but must have %lld there.", i,
                              static_cast<long long>(actual), axis,
                              static_cast<long long>(wanted));
      given.repeats[i] = true;
    }
  return true;
}

inline bool bind_outputs(Outcome& run, const Node& node, OrtKernelContext* context,
                         const int64_t* sizes, void** data) {
  const Program& p = node.program;
  for (int32_t i = 0; i < p.output_count; ++i) {
    const Tensor& tensor = p.tensors[p.input_count + i];
    int64_t dims[kMaxRank];
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
      dims[axis] = sizes[tensor.dims[axis]];
      if (dims[axis] < 0) return run.error.fail("The size of output %d cannot be computed.", i);
    }
    OrtValue* value = nullptr;
    if (!run.good(ort::KernelContext_GetOutput(run.api, context, static_cast<size_t>(i),
                                               static_cast<const int64_t*>(dims),
                                               static_cast<size_t>(tensor.rank), &value)))
      return false;
    if (!value) return run.error.fail("Output %d is missing.", i);
    if (!run.good(ort::GetTensorMutableData(run.api, value, &data[i]))) return false;
  }
  return true;
}

inline int64_t bytes_of(const Program& p, int32_t tensor, const int64_t* sizes) {
  int64_t bytes = bytes_per_element(p.tensors[tensor].type);
  for (int32_t i = 0; i < p.tensors[tensor].rank; ++i) bytes *= sizes[p.tensors[tensor].dims[i]];
  return bytes;
}

// Finds the tensors in device memory that launches can use where they lie: those whose alignment
// suffices for wide accesses and tensor maps.  An output that shares memory with another tensor is
// none of them, as a launch may read an input after another launch has written outputs.
inline void place_tensors(const Shared& s, const int64_t* sizes, void* const* data,
                          cu::Address* out) {
  constexpr cu::Address kWidest = 16;
  const Program& p = *s.program;
  auto at = [&](int32_t i) { return reinterpret_cast<cu::Address>(data[i]); };
  auto end = [&](int32_t i) { return at(i) + static_cast<cu::Address>(bytes_of(p, i, sizes)); };
  for (int32_t i = 0; i < p.tensor_count(); ++i) {
    bool usable = !s.constants[i] && at(i) % kWidest == 0;
    for (int32_t k = 0; usable && i >= p.input_count && k < p.tensor_count(); ++k)
      usable = k == i || s.constants[k] || at(i) >= end(k) || at(k) >= end(i);
    out[i] = usable ? at(i) : 0;
  }
}

// One run of a node: its tensors, and the layout and launches for their sizes.
struct Running {
  void** data;  // non-constant inputs, then outputs
  int64_t* sizes;
  Given given;
  Pool* pool;
  Context* context;
  Layout* layout;
};

// Binds inputs and outputs, acquires a context and a layout, and calls `work` with them.
// `stream_of` returns the stream to use (null: the context's own) and may reject the inputs.
template <class StreamOf, class Work>
bool with_layout(Outcome& run, Node& node, OrtKernelContext* context, StreamOf stream_of,
                 Work work) {
  const Program& p = node.program;
  int64_t symbols[kMaxSymbols];
  Pool pool;
  cu::Address* const tensors =
      node.shared.resident ? pool.array<cu::Address>(p.tensor_count()) : nullptr;
  Running r = {};
  r.sizes = pool.array<int64_t>(p.size_count + 1);
  r.data = pool.array<void*>(p.tensor_count());
  r.given = {r.data, pool.array<int64_t>(p.input_count * kMaxRank),
             pool.array<bool>(p.input_count)};
  r.pool = &pool;
  cu::Stream stream = nullptr;
  bool ok = (r.sizes && r.data && r.given.dims && r.given.repeats &&
             (tensors || !node.shared.resident)) ||
            run.error.fail("There is no memory for a run.");
  ok = ok && bind_inputs(run, node, context, symbols, r.sizes, r.given) &&
       bind_outputs(run, node, context, r.sizes, r.data + p.input_count) &&
       stream_of(r.given, &stream) && enter(run.error, *node.shared.device);
  r.context = ok ? take_context(run.error, node, stream) : nullptr;
  if (ok && tensors) place_tensors(node.shared, r.sizes, r.data, tensors);
  r.layout = r.context ? layout_for(run.error, node.shared, *r.context, symbols, r.sizes, tensors)
                       : nullptr;
  ok = r.layout && work(static_cast<const Running&>(r));
  if (r.context) give_context(node, r.context, ok);
  pool.release();
  return ok;
}

// Replaces an input with a broadcast axis of size 1 by one with the axis's whole size.
inline bool write_repeated(Outcome& run, const Program& p, const Running& r, int32_t input) {
  const int64_t bytes = r.layout->counts[input];
  char* const made = r.pool->array<char>(bytes + 1);
  if (!made) return run.error.fail("There is no memory for a run.");
  int64_t dims[kMaxRank];
  for (int32_t axis = 0; axis < p.tensors[input].rank; ++axis)
    dims[axis] = r.sizes[p.tensors[input].dims[axis]];
  Tensor whole = p.tensors[input];
  if (is_float8(whole.type)) whole.type = kByte;  // for `repeat` knows no 8-bit floats
  repeat(whole, r.given.dims + input * kMaxRank, dims,
         static_cast<const char*>(r.data[input]), bytes, made);
  return r.data[input] = made, true;
}

inline bool run_node(Outcome& run, Node& node, OrtKernelContext* context) {
  const Program& p = node.program;
  auto own_stream = [](const Given&, cu::Stream*) { return true; };
  return with_layout(run, node, context, own_stream, [&](const Running& r) {
    const Layout& layout = *r.layout;
    for (int32_t i = 0; i < p.input_count; ++i)
      if (r.given.repeats[i] && layout.offsets[i] >= 0 && !write_repeated(run, p, r, i)) return false;
    if (!send_inputs(run, context, node.shared, *r.context, layout, r.data)) return false;
    if (!record_blocks(run.error, node.shared, *r.layout)) return false;
    const int64_t start = kTimed ? nanoseconds() : 0;
    if (!execute(run.error, node.shared, *r.context, *r.layout)) return false;
    const int64_t took = kTimed ? nanoseconds() - start : 0;
    if (!write_timeline(run.error, node.shared, *r.context, layout, node.type, took)) return false;
    return receive_outputs(run, context, node.shared, *r.context, layout, r.data);
  });
}

// Puts a run with inputs and outputs in device memory on the context's stream.  Kernels use them
// where they lie; those that `place_tensors` leaves out are copied to and from the arena.
inline bool run_resident(Error& error, const Shared& s, Context& c, Layout& layout,
                         void* const* data) {
  const Program& p = *s.program;
  auto place = [&](int32_t i) { return c.memory + static_cast<uint64_t>(layout.offsets[i]); };
  auto tensor = [&](int32_t i) { return reinterpret_cast<cu::Address>(data[i]); };
  auto move = [&](int32_t i, cu::Address to, cu::Address from) {
    const int64_t bytes = layout.counts[i];
    return layout.offsets[i] < 0 || !bytes ||
           good(error, gpu.driver.move_async(to, from, static_cast<size_t>(bytes), c.stream),
                "move a tensor");
  };
  for (int32_t i = 0; i < p.input_count; ++i)
    if (!move(i, place(i), tensor(i))) return false;
  if (!enqueue(error, s, c, layout)) return false;
  for (int32_t i = p.input_count; i < p.tensor_count(); ++i)
    if (!move(i, tensor(i), place(i))) return false;
  return true;
}

// Runs with inputs and outputs in device memory on ONNX Runtime's stream, asynchronously.
inline bool run_on_device(Outcome& run, Node& node, OrtKernelContext* context) {
  const Program& p = node.program;
  auto given_stream = [&](const Given& given, cu::Stream* stream) {
    for (int32_t i = 0; i < p.input_count; ++i)
      if (given.repeats[i])
        return run.error.fail("Input %d is shorter than others, which the CUDA provider's kernel "
                              "does not repeat; the CPU provider's does.", i);
    void* found = nullptr;
    const bool ok = run.good(ort::KernelContext_GetGPUComputeStream(
        run.api, static_cast<const OrtKernelContext*>(context), &found));
    return *stream = static_cast<cu::Stream>(found), ok;
  };
  return with_layout(run, node, context, given_stream, [&](const Running& r) {
    return run_resident(run.error, node.shared, *r.context, *r.layout, r.data);
  });
}

}  // namespace tracea
