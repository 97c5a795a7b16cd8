// A stand-in for ONNX Runtime that loads one library and runs the jobs of one file, so that library
// and host can both be compiled with a sanitizer.  Every tensor is an allocation of its exact size.
//
//     host LIBRARY JOBS ANSWERS WORKERS TOGETHER REPEATS FILL SPINS
//
// Threads may spin unless SPINS is 0.
// Each job's kernel is created once and run REPEATS times by TOGETHER threads at once; a kernel's
// own loops are shared among WORKERS threads.  Every byte of results, scratch and stack is FILL
// before a run.  ANSWERS gets, for each job, either the sentence of
// its error or its outputs, which must be the same bits each time.  harness.py has the formats.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runtime/ort_abi.h"

struct OrtStatus {
  std::string text;
};
struct OrtTensorTypeAndShapeInfo {
  int type = 1;
  std::vector<int64_t> dims;
  std::vector<std::string> names;
};
struct OrtValue {
  OrtTensorTypeAndShapeInfo shape;
  char* data = nullptr;
  size_t bytes = 0;
  OrtValue() = default;
  OrtValue(const OrtValue&) = delete;
  ~OrtValue() { free(data); }
};
struct OrtKernelInfo {
  std::vector<int64_t> plan;
  const std::vector<OrtValue>* inputs = nullptr;
};
struct OrtOpAttr {
  const std::vector<int64_t>* words;
};
struct OrtKernelContext {
  const std::vector<OrtValue>* inputs;
  std::vector<OrtValue>* outputs;
  const OrtCustomOp* op;
};
struct OrtShapeInferContext {
  std::vector<OrtTensorTypeAndShapeInfo> inputs;
  std::map<size_t, OrtTensorTypeAndShapeInfo> outputs;
  OrtOpAttr plan;
};
struct OrtCustomOpDomain {
  std::vector<const OrtCustomOp*> ops;
};
struct OrtSessionOptions {
  OrtCustomOpDomain* domain = nullptr;
};
struct OrtMemoryInfo {};
struct OrtAllocator {};

namespace {

int workers = 1, fill = 0xff;
bool spins = true;
OrtMemoryInfo memory;
OrtAllocator allocator;

[[noreturn]] void die(const std::string& why) {
  fprintf(stderr, "%s\n", why.c_str());
  exit(1);
}

OrtStatus* fail(const char* text) { return new OrtStatus{text}; }

size_t element_size(int type) {
  switch (type) {
    case 2: case 3: case 9: return 1;
    case 4: case 5: case 10: case 16: return 2;
    case 1: case 6: case 12: return 4;
    default: return 8;
  }
}

constexpr size_t kMost = 64 << 20;  // bytes of a tensor or of scratch

OrtStatus* allocate(OrtValue& value) {
  value.bytes = element_size(value.shape.type);
  for (int64_t dim : value.shape.dims)
    if (dim < 0 || __builtin_mul_overflow(value.bytes, static_cast<size_t>(dim), &value.bytes))
      return fail("a tensor has no size");
  if (value.bytes > kMost) return fail("a tensor is too large");
  free(value.data);
  value.data = value.bytes ? static_cast<char*>(malloc(value.bytes)) : nullptr;
  if (value.data) memset(value.data, fill, value.bytes);
  return nullptr;
}

// ---- the functions ----------------------------------------------------------------------------

OrtStatus* parallel(const OrtKernelContext*, void (*task)(void*, size_t), size_t total, size_t,
                    void* job) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < total;) task(job, i);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < workers; ++i) others.emplace_back(work);
  work();
  for (auto& other : others) other.join();
  return nullptr;
}

OrtStatus* get_output(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank,
                      OrtValue** out) {
  OrtValue& value = (*context->outputs)[index];
  value.shape.type = context->op->GetOutputType(context->op, index);
  value.shape.dims.assign(dims, dims + rank);
  *out = &value;
  return allocate(value);
}

OrtStatus* get_plan(const OrtKernelInfo* info, const char* name, int64_t* out, size_t* count) {
  if (strcmp(name, "plan")) return fail("there is only a plan");
  if (out && *count < info->plan.size()) return fail("too small");
  if (out) memcpy(out, info->plan.data(), info->plan.size() * 8);
  return *count = info->plan.size(), nullptr;
}

// Every other input is a constant, for kernels to ask for once.
OrtStatus* get_constant(const OrtKernelInfo* info, size_t index, int* constant,
                        const OrtValue** out) {
  *constant = index % 2 && index < info->inputs->size();
  return *out = *constant ? &(*info->inputs)[index] : nullptr, nullptr;
}

OrtStatus* read_attribute(const OrtOpAttr* attribute, int, void* data, size_t bytes, size_t* out) {
  *out = attribute->words->size() * 8;
  if (bytes < *out) return fail("too small");
  memcpy(data, attribute->words->data(), *out);
  return nullptr;
}

void* table[512];

template <class Function>
void set(size_t slot, Function function) {
  table[slot] = reinterpret_cast<void*>(+function);
}

void fill_table() {
  using Info = OrtTensorTypeAndShapeInfo;
  using S = OrtStatus*;
  for (auto& slot : table)
    slot = reinterpret_cast<void*>(+[] { die("the library called a function it should not"); });
  set(0, [](int, const char* text) -> S { return new OrtStatus{text}; });
  set(93, [](OrtStatus* status) { delete status; });
  set(26, [](const char*, OrtCustomOpDomain** out) -> S {
    return *out = new OrtCustomOpDomain, nullptr;
  });
  set(27, [](OrtCustomOpDomain* domain, const OrtCustomOp* op) -> S {
    return domain->ops.push_back(op), nullptr;
  });
  set(28, [](OrtSessionOptions* options, OrtCustomOpDomain* domain) -> S {
    return options->domain = domain, nullptr;
  });
  set(101, [](OrtCustomOpDomain* domain) { delete domain; });
  set(237, [](const OrtSessionOptions*, const char*, int* found) -> S {
    return *found = !spins, nullptr;
  });
  set(238, [](const OrtSessionOptions*, const char*, char* out, size_t*) -> S {
    return strcpy(out, "0"), nullptr;
  });
  set(163, get_plan);
  set(249, get_constant);
  set(244, [](const OrtKernelInfo*, char* out, size_t* size) -> S {
    const char name[] = "node";
    if (out && *size >= sizeof name) memcpy(out, name, sizeof name);
    return *size = sizeof name, nullptr;
  });
  set(90, [](const OrtKernelContext* context, size_t i, const OrtValue** out) -> S {
    return *out = i < context->inputs->size() ? &(*context->inputs)[i] : nullptr, nullptr;
  });
  set(91, get_output);
  set(274, parallel);
  set(253, [](const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator** out) -> S {
    return *out = &allocator, nullptr;
  });
  set(75, [](OrtAllocator*, size_t bytes, void** out) -> S {
    *out = bytes > kMost ? nullptr : malloc(bytes);
    if (*out) memset(*out, fill, bytes);
    return nullptr;
  });
  set(76, [](OrtAllocator*, void* block) -> S { return free(block), nullptr; });
  set(132, [](OrtAllocator*) {});
  set(69, [](int, int, OrtMemoryInfo** out) -> S { return *out = &memory, nullptr; });
  set(94, [](OrtMemoryInfo*) {});
  set(51, [](OrtValue* value, void** out) -> S { return *out = value->data, nullptr; });
  set(65, [](const OrtValue* value, Info** out) -> S {
    return *out = new Info(value->shape), nullptr;
  });
  set(61, [](const Info* info, size_t* out) -> S { return *out = info->dims.size(), nullptr; });
  set(62, [](const Info* info, int64_t* out, size_t count) -> S {
    for (size_t i = 0; i < count && i < info->dims.size(); ++i) out[i] = info->dims[i];
    return nullptr;
  });
  set(63, [](const Info* info, const char** out, size_t count) -> S {
    for (size_t i = 0; i < count && i < info->names.size(); ++i) out[i] = info->names[i].c_str();
    return nullptr;
  });
  set(57, [](Info** out) -> S { return *out = new Info, nullptr; });
  set(58, [](Info* info, int type) -> S { return info->type = type, nullptr; });
  set(59, [](Info* info, const int64_t* dims, size_t count) -> S {
    return info->dims.assign(dims, dims + count), nullptr;
  });
  set(271, [](Info* info, const char** names, size_t count) -> S {
    return info->names.assign(names, names + count), nullptr;
  });
  set(99, [](Info* info) { delete info; });
  set(267, [](const OrtShapeInferContext* context, size_t* out) -> S {
    return *out = context->inputs.size(), nullptr;
  });
  set(268, [](const OrtShapeInferContext* context, size_t i, Info** out) -> S {
    return *out = const_cast<Info*>(&context->inputs[i]), nullptr;
  });
  set(269, [](const OrtShapeInferContext* context, const char*, const OrtOpAttr** out) -> S {
    return *out = &context->plan, nullptr;
  });
  set(270, [](OrtShapeInferContext* context, size_t i, const Info* info) -> S {
    return context->outputs[i] = *info, nullptr;
  });
  set(272, read_attribute);
}

// ---- files ------------------------------------------------------------------------------------

struct Job {
  std::string type;
  OrtKernelInfo info;
  std::vector<OrtValue> inputs;
};

int64_t number(std::istream& file) {
  int64_t value = 0;
  file.read(reinterpret_cast<char*>(&value), 8);
  if (!file) die("the jobs end too early");
  return value;
}

void put(std::ostream& file, int64_t value) {
  file.write(reinterpret_cast<const char*>(&value), 8);
}

Job read_job(std::istream& file) {
  std::string type(static_cast<size_t>(number(file)), ' ');
  file.read(type.data(), static_cast<std::streamsize>(type.size()));
  std::vector<int64_t> plan(static_cast<size_t>(number(file)));
  for (auto& word : plan) word = number(file);
  Job job{type, {plan, nullptr}, std::vector<OrtValue>(static_cast<size_t>(number(file)))};
  for (auto& input : job.inputs) {
    input.shape.type = static_cast<int>(number(file));
    input.shape.dims.resize(static_cast<size_t>(number(file)));
    for (auto& dim : input.shape.dims) dim = number(file);
    if (OrtStatus* status = allocate(input)) die(status->text);
    file.read(input.data, static_cast<std::streamsize>(input.bytes));
  }
  return job;
}

void write_error(std::ostream& file, OrtStatus* status) {
  put(file, static_cast<int64_t>(status->text.size()));
  file << status->text;
  delete status;
}

void write_outputs(std::ostream& file, const std::vector<OrtValue>& outputs) {
  put(file, 0);
  put(file, static_cast<int64_t>(outputs.size()));
  for (const auto& output : outputs) {
    put(file, output.shape.type);
    put(file, static_cast<int64_t>(output.shape.dims.size()));
    for (int64_t dim : output.shape.dims) put(file, dim);
    file.write(output.data, static_cast<std::streamsize>(output.bytes));
  }
}

// ---- running ----------------------------------------------------------------------------------

void infer(const OrtCustomOp* op, const Job& job) {
  OrtShapeInferContext context{{}, {}, {&job.info.plan}};
  for (const auto& input : job.inputs) {
    context.inputs.push_back(input.shape);
    context.inputs.back().names.assign(input.shape.dims.size(), "");
    if (!input.shape.dims.empty()) {
      context.inputs.back().dims[0] = -1;
      context.inputs.back().names[0] = "batch";
    }
  }
  delete op->InferOutputShapeFn(op, &context);
}

// Small scratch lies on the stack, where earlier calls left what they had.
__attribute__((noinline)) void spoil_stack() {
  char left[512 * 1024];
  memset(left, fill, sizeof left);
  asm volatile("" : : "r"(left) : "memory");
}

OrtStatus* run(const OrtCustomOp* op, void* kernel, const Job& job,
               std::vector<OrtValue>& outputs) {
  OrtKernelContext context{&job.inputs, &outputs, op};
  spoil_stack();
  return op->KernelComputeV2(kernel, &context);
}

bool same(const std::vector<OrtValue>& a, const std::vector<OrtValue>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].bytes != b[i].bytes || memcmp(a[i].data, b[i].data, a[i].bytes)) return false;
  return true;
}

void answer(const OrtCustomOp* op, const OrtApi* api, const Job& job, int together, int repeats,
            std::ostream& file) {
  infer(op, job);
  void* kernel = nullptr;
  const OrtKernelInfo info{job.info.plan, &job.inputs};
  if (OrtStatus* status = op->CreateKernelV2(op, api, &info, &kernel))
    return write_error(file, status);
  std::vector<OrtValue> first(op->GetOutputTypeCount(op));
  if (OrtStatus* status = run(op, kernel, job, first)) {
    op->KernelDestroy(kernel);
    return write_error(file, status);
  }
  auto again = [&] {
    for (int i = 0; i < repeats; ++i) {
      std::vector<OrtValue> found(first.size());
      if (OrtStatus* status = run(op, kernel, job, found)) die(status->text);
      if (!same(first, found)) die(job.type + " gives other bits when run again");
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < together; ++i) threads.emplace_back(again);
  for (auto& thread : threads) thread.join();
  op->KernelDestroy(kernel);
  write_outputs(file, first);
}

}  // namespace

int main(int count, char** argument) {
  if (count != 9) die("host LIBRARY JOBS ANSWERS WORKERS TOGETHER REPEATS FILL SPINS");
  workers = atoi(argument[4]), fill = atoi(argument[7]), spins = atoi(argument[8]);
  fill_table();
  void* library = dlopen(argument[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) die(dlerror());
  using Register = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);
  auto enter = reinterpret_cast<Register>(dlsym(library, "RegisterCustomOps"));
  if (!enter) die("the library does not export RegisterCustomOps");
  const OrtApi* api = reinterpret_cast<const OrtApi*>(table);
  static const OrtApiBase base = {
      [](uint32_t) { return reinterpret_cast<const OrtApi*>(table); }, [] { return "1.17.0"; }};
  OrtSessionOptions options;
  if (OrtStatus* status = enter(&options, &base)) die(status->text);
  std::map<std::string, const OrtCustomOp*> ops;
  for (const OrtCustomOp* op : options.domain->ops) ops[op->GetName(op)] = op;
  std::ifstream jobs(argument[2], std::ios::binary);
  std::ofstream answers(argument[3], std::ios::binary);
  for (int64_t left = number(jobs); left > 0; --left) {
    const Job job = read_job(jobs);
    if (!ops.count(job.type)) die("the library has no " + job.type);
    answer(ops[job.type], api, job, atoi(argument[5]), atoi(argument[6]), answers);
  }
  answers.flush();
  dlclose(library);  // what it leaves behind is a leak
  return answers ? 0 : 1;
}
