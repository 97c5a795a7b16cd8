// Runs a model once in ONNX Runtime on Windows, over its C ABI (slots as in runtime/ort_abi.h):
//
//     host onnxruntime.dll MODEL.onnx LIBRARY.dll|- PREFIX THREADS [NAME TYPE FILE RANK DIM…]…
//
// Inputs are raw files; output i is written to PREFIX.i.
#include <windows.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct OrtApiBase {
  const void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
const void* const* table;

template <class Result, class... Args>
Result call(size_t slot, Args... args) {
  return reinterpret_cast<Result (*)(Args...)>(const_cast<void*>(table[slot]))(args...);
}

template <class... Args>
void check(size_t slot, Args... args) {
  if (void* status = call<void*>(slot, args...)) {
    fprintf(stderr, "%s\n", call<const char*>(2, status));
    exit(1);
  }
}

const wchar_t* wide(const char* text) {
  const size_t count = strlen(text) + 1;
  wchar_t* out = static_cast<wchar_t*>(calloc(count, sizeof(wchar_t)));
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<wchar_t>(text[i]);
  return out;
}

char* contents(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (!file) fprintf(stderr, "%s cannot be read\n", path), exit(1);
  fseek(file, 0, SEEK_END);
  *size = static_cast<size_t>(ftell(file));
  rewind(file);
  char* data = static_cast<char*>(malloc(*size + 1));
  if (fread(data, 1, *size, file) != *size) exit(1);
  fclose(file);
  return data;
}

size_t bytes_of(int type) {  // ONNX's element types
  switch (type) {
    case 2: case 3: case 9: return 1;
    case 4: case 5: case 10: case 16: return 2;
    case 7: case 11: case 13: return 8;
    default: return 4;
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 6) return 2;
  const HMODULE runtime = LoadLibraryA(words[1]);
  if (!runtime) return fprintf(stderr, "%s: error %lu\n", words[1], GetLastError()), 1;
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(
      reinterpret_cast<void*>(GetProcAddress(runtime, "OrtGetApiBase")))();
  table = base->GetApi(17);
  void *env = nullptr, *options = nullptr, *session = nullptr, *memory = nullptr;
  void* allocator = nullptr;
  check(3, 3, "", &env);
  check(10, &options);
  check(24, options, atoi(words[5]));
  if (strcmp(words[3], "-")) check(228, options, wide(words[3]));
  check(7, env, wide(words[2]), static_cast<const void*>(options), &session);
  check(69, 0, 0, &memory);
  check(78, &allocator);

  const char* names[64];
  void *inputs[64], *outputs[64] = {};
  size_t given = 0;
  for (int i = 6; i < count; ++given) {
    int64_t dims[8];
    const int type = atoi(words[i + 1]), rank = atoi(words[i + 3]);
    for (int d = 0; d < rank; ++d) dims[d] = atoll(words[i + 4 + d]);
    size_t size = 0;
    char* data = contents(words[i + 2], &size);
    names[given] = words[i];
    check(49, memory, static_cast<void*>(data), size, static_cast<const int64_t*>(dims),
          static_cast<size_t>(rank), type, &inputs[given]);
    i += 4 + rank;
  }
  size_t results = 0;
  check(31, static_cast<const void*>(session), &results);
  char* made[64];
  for (size_t i = 0; i < results; ++i)
    check(37, static_cast<const void*>(session), i, allocator, &made[i]);
  for (int again = 0; again < 2; ++again) {
    memset(outputs, 0, sizeof outputs);
    check(9, session, static_cast<const void*>(nullptr), static_cast<const char* const*>(names),
          static_cast<const void* const*>(inputs), given, static_cast<const char* const*>(made),
          results, static_cast<void**>(outputs));
  }
  for (size_t i = 0; i < results; ++i) {
    void *info = nullptr, *data = nullptr;
    size_t elements = 0;
    int type = 0;
    check(65, static_cast<const void*>(outputs[i]), &info);
    check(64, static_cast<const void*>(info), &elements);
    check(60, static_cast<const void*>(info), &type);
    check(51, outputs[i], &data);
    char path[512];
    snprintf(path, sizeof path, "%s.%zu", words[4], i);
    FILE* file = fopen(path, "wb");
    if (!file || fwrite(data, bytes_of(type), elements, file) != elements) return 1;
    fclose(file);
  }
  printf("%s %zu outputs\n", base->GetVersionString(), results);
  fflush(stdout);
  ExitProcess(0);
}
