// A node: a decoded program, its constants on the device, and contexts for runs at the same time.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/run.h"

namespace tracea {

struct Node {
  const char* type;
  const OrtApi* api;
  Program program;
  Shared shared;
  Weight** weights;      // of inputs that are constant
  int64_t* whole;        // dims of those inputs, [inputs][kMaxRank]
  cu::Address* own;      // constants made here, of temps
  Context* idle;
  pthread_mutex_t mutex;
};

// A status of ONNX Runtime's or a fault of ours, whichever came first.
struct Run {
  const OrtApi* api;
  OrtStatus* status = nullptr;
  Fault fault;

  bool good(OrtStatus* given) {
    if (given) status = given;
    return !given;
  }
};

// Dimensions of a tensor, whose rank must be the plan's.
inline bool read_dims(Run& run, const OrtValue* value, int32_t input, int32_t rank, int64_t* dims) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  size_t actual = 0;
  if (!run.good(ort::GetTensorTypeAndShape(run.api, value, &info))) return false;
  bool ok = run.good(ort::GetDimensionsCount(run.api, info, &actual));
  if (ok && actual == static_cast<size_t>(rank))
    ok = run.good(ort::GetDimensions(run.api, info, dims, actual));
  ort::ReleaseTensorTypeAndShapeInfo(run.api, info);
  return ok && (actual == static_cast<size_t>(rank) ||
                run.fault.fail("Input %d has %d axes, but must have %d.", input,
                               static_cast<int>(actual), rank));
}

inline bool number_at(const Program& p, int32_t size, int64_t dim) {
  return p.sizes[size].op == kNumber && p.sizes[size].a == dim;
}

// Brings the inputs that are constant to the device.
inline bool take_constants(Run& run, Node& node, const OrtKernelInfo* info) {
  const Program& p = node.program;
  for (int32_t i = 0; i < p.input_count; ++i) {
    const Tensor& tensor = p.tensors[i];
    int constant = 0;
    const OrtValue* value = nullptr;
    int64_t dims[kMaxRank], count = 1;
    if (!run.good(ort::KernelInfoGetConstantInput_tensor(run.api, info, static_cast<size_t>(i),
                                                         &constant, &value)))
      return false;
    if (!constant || !value) continue;
    if (!read_dims(run, value, i, tensor.rank, dims)) return false;
    for (int32_t axis = 0; constant && axis < tensor.rank; count *= dims[axis++])
      constant = number_at(p, tensor.dims[axis], dims[axis]);
    for (int32_t s = 0; s < p.symbol_count; ++s) constant = constant && p.symbols[s].input != i;
    if (!constant) continue;
    void* data = nullptr;
    if (!run.good(ort::GetTensorMutableData(run.api, const_cast<OrtValue*>(value), &data)))
      return false;
    node.weights[i] = take_weight(run.fault, data, count * element_size(tensor.type));
    if (!node.weights[i]) return false;
    node.shared.constants[i] = node.weights[i]->address;
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

// Which launches depend on constants alone: what they make is made once.
inline void find_once(const Node& node, const bool* number, bool* fixed) {
  const Program& p = node.program;
  const int32_t tensors = p.tensor_count();
  for (int32_t i = 0; i < p.buffer_count(); ++i)
    fixed[i] = i < tensors ? node.shared.constants[i] != 0 : number[p.temps[i - tensors].count];
  for (int32_t i = 0; i < p.launch_count; ++i) node.shared.once[i] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (int32_t i = 0; i < p.launch_count; ++i) {
      const Launch& launch = p.launches[i];
      bool once = node.shared.once[i];
      for (int32_t extent : launch.grid) once = once && number[extent];
      for (int32_t k = 0; k < launch.count; ++k) {
        const Argument& a = launch.arguments[k];
        if (a.kind == Argument::kReal) continue;
        if (a.kind == Argument::kPointer && a.buffer < 0) continue;
        once = once && number[a.value];
        if (a.kind == Argument::kPointer) once = once && fixed[a.buffer] && number[a.span];
      }
      if (once == node.shared.once[i] && once) continue;
      changed = changed || node.shared.once[i];
      node.shared.once[i] = false;
      for (int32_t k = 0; k < launch.count; ++k) {
        const Argument& a = launch.arguments[k];
        if (a.kind != Argument::kPointer || a.buffer < tensors || !a.written) continue;
        changed = changed || fixed[a.buffer];
        fixed[a.buffer] = false;
      }
    }
  }
}

// Runs those launches, and lets go of inputs that nothing else reads.
inline bool run_once(Run& run, Node& node) {
  const Program& p = node.program;
  Pool pool;
  bool* number = pool.array<bool>(p.size_count + 1);
  bool* fixed = pool.array<bool>(p.buffer_count());
  int64_t* sizes = pool.array<int64_t>(p.size_count + 1);
  int64_t* counts = pool.array<int64_t>(p.buffer_count());
  int64_t* symbols = pool.array<int64_t>(p.symbol_count + 1);
  cu::Stream stream = nullptr;
  bool ok = number && fixed && sizes && counts && symbols;
  if (!ok) run.fault.fail("There is no memory for a node.");
  ok = ok && good(run.fault, gpu.driver.create_stream(&stream, cu::kNonBlocking), "make a stream");
  if (ok) {
    find_numbers(p, number);
    find_once(node, number, fixed);
    for (int32_t i = 0; i < p.symbol_count; ++i) symbols[i] = 0;
    evaluate(p, symbols, sizes);
  }
  for (int32_t i = 0; ok && i < p.buffer_count(); ++i) {
    const int32_t temp = i - p.tensor_count();
    counts[i] = temp < 0 ? 1 : most(sizes[p.temps[temp].count], 0);
    for (int32_t a = 0; temp < 0 && a < p.tensors[i].rank; ++a) counts[i] *= most(sizes[p.tensors[i].dims[a]], 0);
    counts[i] *= element_size(type_of(p, i));
    bool used = false;
    for (int32_t k = 0; temp >= 0 && fixed[i] && k < p.launch_count; ++k)
      for (int32_t j = 0; j < p.launches[k].count; ++j)
        used = used || (p.launches[k].arguments[j].kind == Argument::kPointer &&
                        p.launches[k].arguments[j].buffer == i);
    if (!used) continue;
    ok = allocate(run.fault, counts[i], &node.own[temp]);
    node.shared.constants[i] = node.own[temp];
  }
  auto address = [&](int32_t buffer) { return node.shared.constants[buffer]; };
  for (int32_t i = 0; ok && i < p.launch_count; ++i) {
    Ready ready;
    if (node.shared.once[i])
      ok = make_ready(run.fault, p.launches[i], node.shared.functions[i], sizes, counts, address,
                      pool, &ready) &&
           start(run.fault, ready, stream);
  }
  if (stream) ok = good(run.fault, gpu.driver.wait_for_stream(stream), "prepare weights") && ok;
  if (stream) gpu.driver.destroy_stream(stream);
  pool.release();
  return ok;
}

// Lets go of constants that no later run reads.
inline void drop_unused(Node& node) {
  const Program& p = node.program;
  for (int32_t b = 0; b < p.buffer_count(); ++b) {
    if (!node.shared.constants[b]) continue;
    bool read = false;
    for (int32_t i = 0; !read && i < p.launch_count; ++i)
      for (int32_t k = 0; !node.shared.once[i] && k < p.launches[i].count; ++k) {
        const Argument& a = p.launches[i].arguments[k];
        read = read || (a.kind == Argument::kPointer && a.buffer == b);
      }
    if (read) continue;
    const int32_t temp = b - p.tensor_count();
    if (temp < 0) {
      release_weight(node.weights[b]);
      node.weights[b] = nullptr;
    } else if (node.own[temp]) {
      gpu.driver.free_device(node.own[temp]);
      node.own[temp] = 0;
    }
  }
}

inline bool open_node(Run& run, Node& node, const OrtKernelInfo* info) {
  Program& p = node.program;
  Shared& s = node.shared;
  s.program = &p;
  s.functions = p.pool.array<cu::Function>(p.launch_count + 1);
  s.constants = p.pool.array<cu::Address>(p.buffer_count());
  s.once = p.pool.array<bool>(p.launch_count + 1);
  node.weights = p.pool.array<Weight*>(p.input_count);
  node.own = p.pool.array<cu::Address>(p.temp_count + 1);
  if (!s.functions || !s.constants || !s.once || !node.weights || !node.own)
    return run.fault.fail("There is no memory for a node.");
  if (!enter(run.fault)) return false;
  for (int32_t i = 0; i < p.launch_count; ++i)
    if (!load_kernel(run.fault, p.launches[i].kernel, p.launches[i].shared, &s.functions[i]))
      return false;
  // uploads return when their source may change, not when they have arrived
  if (!take_constants(run, node, info) ||
      !good(run.fault, gpu.driver.wait_for_stream(nullptr), "take weights") ||
      !run_once(run, node))
    return false;
  drop_unused(node);
  return true;
}

inline void close_node(Node& node) {
  Fault fault;
  if (node.shared.program && gpu.context && enter(fault)) {
    while (Context* c = node.idle) node.idle = c->next, release(c);
    for (int32_t i = 0; node.weights && i < node.program.input_count; ++i)
      release_weight(node.weights[i]);
    for (int32_t i = 0; node.own && i < node.program.temp_count; ++i)
      if (node.own[i]) gpu.driver.free_device(node.own[i]);
  }
  pthread_mutex_destroy(&node.mutex);
  node.program.pool.release();
}

inline Context* take_context(Fault& fault, Node& node) {
  {
    Lock lock(node.mutex);
    if (Context* c = node.idle) return node.idle = c->next, c;
  }
  Context* made = static_cast<Context*>(calloc(1, sizeof(Context)));
  if (!made) return fault.fail("There is no memory for a run."), nullptr;
  if (good(fault, gpu.driver.create_stream(&made->stream, cu::kNonBlocking), "make a stream"))
    return made;
  return free(made), nullptr;
}

inline void give_context(Node& node, Context* c) {
  Lock lock(node.mutex);
  c->next = node.idle;
  node.idle = c;
}

// What a symbol stands for whose own axis may be 1: the size of an axis it names that is not.
inline int64_t widest(const Node& node, const int64_t* dims, int32_t symbol) {
  const Program& p = node.program;
  const Place& own = p.symbols[symbol];
  const int64_t size = dims[own.input * kMaxRank + own.axis];
  if (size != 1 || !(p.tensors[own.input].loose >> own.axis & 1)) return size;
  for (int32_t i = 0; i < p.input_count; ++i)
    for (int32_t axis = 0; !node.shared.constants[i] && axis < p.tensors[i].rank; ++axis) {
      const Size& named = p.sizes[p.tensors[i].dims[axis]];
      if (named.op == kSymbol && named.a == symbol && dims[i * kMaxRank + axis] != 1)
        return dims[i * kMaxRank + axis];
    }
  return size;
}

// Where the inputs of one run lie that are no constants, and their sizes as they came.
struct Given {
  void** data;
  int64_t* dims;  // [inputs][kMaxRank]
  bool* repeats;  // inputs that are shorter than the plan says
};

inline bool bind_inputs(Run& run, const Node& node, OrtKernelContext* context, int64_t* symbols,
                        int64_t* sizes, const Given& given) {
  const Program& p = node.program;
  for (int32_t i = 0; i < p.input_count; ++i) {
    if (node.shared.constants[i]) continue;
    const OrtValue* value = nullptr;
    if (!run.good(ort::KernelContext_GetInput(run.api, context, static_cast<size_t>(i), &value)))
      return false;
    if (!value) return run.fault.fail("Input %d is missing.", i);
    if (!read_dims(run, value, i, p.tensors[i].rank, given.dims + i * kMaxRank) ||
        !run.good(ort::GetTensorMutableData(run.api, const_cast<OrtValue*>(value), &given.data[i])))
      return false;
  }
  for (int32_t s = 0; s < p.symbol_count; ++s) symbols[s] = widest(node, given.dims, s);
  evaluate(p, symbols, sizes);
  for (int32_t i = 0; i < p.input_count; ++i)
    for (int32_t axis = 0; !node.shared.constants[i] && axis < p.tensors[i].rank; ++axis) {
      const Tensor& tensor = p.tensors[i];
      const int64_t wanted = sizes[tensor.dims[axis]], actual = given.dims[i * kMaxRank + axis];
      if (wanted == actual) continue;
      if (actual != 1 || wanted < 0 || !(tensor.loose >> axis & 1))
        return run.fault.fail("Input %d has size %lld at axis %d, but must have %lld there.", i,
                              static_cast<long long>(actual), axis,
                              static_cast<long long>(wanted));
      given.repeats[i] = true;
    }
  return true;
}

// An input as the plan has it: repeated along axes of size 1 that are longer there.
inline void stage(const Tensor& tensor, const int64_t* from, const int64_t* sizes, bool repeats,
                  const char* data, int64_t bytes, char* to) {
  if (!repeats) return (void)memcpy(to, data, static_cast<size_t>(bytes));
  int64_t chunk = element_size(tensor.type), place[kMaxRank] = {};
  int32_t outer = tensor.rank;  // what lies behind these axes is as it was
  while (outer > 0 && from[outer - 1] == sizes[tensor.dims[outer - 1]]) chunk *= from[--outer];
  for (int64_t done = 0; done < bytes; done += chunk) {
    int64_t at = 0;
    for (int32_t axis = 0; axis < outer; ++axis)
      at = at * from[axis] + (from[axis] == sizes[tensor.dims[axis]] ? place[axis] : 0);
    memcpy(to + done, data + at * chunk, static_cast<size_t>(chunk));
    for (int32_t axis = outer; axis-- > 0 && ++place[axis] == sizes[tensor.dims[axis]];)
      place[axis] = 0;
  }
}

inline bool bind_outputs(Run& run, const Node& node, OrtKernelContext* context,
                         const int64_t* sizes, void** data) {
  const Program& p = node.program;
  for (int32_t i = 0; i < p.output_count; ++i) {
    const Tensor& tensor = p.tensors[p.input_count + i];
    int64_t dims[kMaxRank];
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
      dims[axis] = sizes[tensor.dims[axis]];
      if (dims[axis] < 0) return run.fault.fail("The size of output %d cannot be computed.", i);
    }
    OrtValue* value = nullptr;
    if (!run.good(ort::KernelContext_GetOutput(run.api, context, static_cast<size_t>(i),
                                               static_cast<const int64_t*>(dims),
                                               static_cast<size_t>(tensor.rank), &value)))
      return false;
    if (!value) return run.fault.fail("Output %d is missing.", i);
    if (!run.good(ort::GetTensorMutableData(run.api, value, &data[i]))) return false;
  }
  return true;
}

inline bool run_node(Run& run, Node& node, OrtKernelContext* context) {
  const Program& p = node.program;
  int64_t symbols[kMaxSymbols];
  Pool pool;
  int64_t* sizes = pool.array<int64_t>(p.size_count + 1);
  void** data = pool.array<void*>(p.tensor_count());
  const Given given = {data, pool.array<int64_t>(p.input_count * kMaxRank),
                       pool.array<bool>(p.input_count)};
  bool ok = sizes && data && given.dims && given.repeats;
  if (!ok) run.fault.fail("There is no memory for a run.");
  ok = ok && bind_inputs(run, node, context, symbols, sizes, given) &&
       bind_outputs(run, node, context, sizes, data + p.input_count) && enter(run.fault);
  Context* c = ok ? take_context(run.fault, node) : nullptr;
  Layout* layout = c ? layout_for(run.fault, node.shared, *c, symbols, sizes) : nullptr;
  auto bytes = [&](int32_t i) {
    return static_cast<size_t>(layout->counts[i]);
  };
  if (layout) {
    for (int32_t i = 0; i < p.input_count; ++i)
      if (layout->offsets[i] >= 0 && bytes(i))
        stage(p.tensors[i], given.dims + i * kMaxRank, sizes, given.repeats[i],
              static_cast<const char*>(data[i]), static_cast<int64_t>(bytes(i)),
              c->in + layout->offsets[i]);
    ok = execute(run.fault, node.shared, *c, *layout);
  }
  if (layout && ok)
    for (int32_t i = p.input_count; i < p.tensor_count(); ++i)
      if (bytes(i)) memcpy(data[i], c->out + (layout->offsets[i] - layout->out_first), bytes(i));
  if (c && layout && ok) give_context(node, c);
  else if (c) release(c);
  pool.release();
  return ok && layout;
}

}  // namespace tracea
