// The few classes of ONNX Runtime's C++ API that README.md uses, over the C ABI of the shared library
// in the onnxruntime wheel, which ships no headers.  Slot numbers as in kernels/ort_abi.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
struct OrtApiBase {
  const void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
const OrtApiBase* OrtGetApiBase();
}

namespace Ort {

template <class Result, class... Args>
Result call(std::size_t slot, Args... args) {
  static const void* const* table = OrtGetApiBase()->GetApi(17);
  return reinterpret_cast<Result (*)(Args...)>(const_cast<void*>(table[slot]))(args...);
}

// ORT's own API throws; a test only needs the sentence.
template <class... Args>
void check(std::size_t slot, Args... args) {
  if (void* status = call<void*>(slot, args...)) {
    std::fprintf(stderr, "%s\n", call<const char*>(2, status));
    std::exit(1);
  }
}

struct Env {
  void* handle = nullptr;
  Env() { check(3, 2, "", &handle); }
  ~Env() { call<void>(92, handle); }
};

struct SessionOptions {
  void* handle = nullptr;
  SessionOptions() { check(10, &handle); }
  ~SessionOptions() { call<void>(100, handle); }
  void RegisterCustomOpsLibrary(const char* path) { check(228, handle, path); }
};

struct Session {
  void* handle = nullptr;
  Session(const Env& env, const char* path, const SessionOptions& options) {
    check(7, env.handle, path, static_cast<const void*>(options.handle), &handle);
  }
  ~Session() { call<void>(95, handle); }

  // The floats of output `y` for a float input `x`; not part of ONNX Runtime's API.
  std::vector<float> run(std::vector<float> x, std::vector<int64_t> shape, std::size_t count) {
    void *memory = nullptr, *input = nullptr, *output = nullptr, *data = nullptr;
    const char *in = "x", *out = "y";
    check(69, 0, 0, &memory);
    check(49, memory, static_cast<void*>(x.data()), x.size() * 4, shape.data(), shape.size(), 1,
          &input);
    check(9, handle, nullptr, &in, &input, std::size_t{1}, &out, std::size_t{1}, &output);
    check(51, output, &data);
    const float* values = static_cast<const float*>(data);
    std::vector<float> found(values, values + count);
    for (void* value : {input, output}) call<void>(96, value);
    call<void>(94, memory);
    return found;
  }
};

}  // namespace Ort
