// The functions of tsr.h.  Modules are loaded by the dynamic linker; their kernels are the functions
// of tracea.h.  Streams and memory are those of the context's device (tsr_device.h); on the CPU a
// launch has run when it returns, so its streams are in order by themselves.
#define TRACEA_BUILD
#include "runtime/tsr.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tsr_device.h"

struct TsrContext {
  const TsrDevice* functions;
  int32_t device, objects;  // modules and streams that are left
};

struct TsrKernel {
  TsrModule* module;
  const char* name;
  size_t least, most;  // arguments
  void* function;
};

namespace {

struct Known {
  const char *name, *symbol;
  size_t least, most;
};
constexpr Known kKnown[] = {
    {"gemm", "tracea_gemm", 4, 4},           {"conv2d", "tracea_conv2d", 4, 4},
    {"attention", "tracea_attention", 5, 5}, {"norm", "tracea_norm", 4, 4},
    {"program", "tracea_run_program", 2, 576},
};
constexpr size_t kKinds = sizeof kKnown / sizeof *kKnown;

__thread char last_error[TRACEA_MAX_ERROR];

__attribute__((format(printf, 2, 3))) TraceaStatus fail(TraceaStatus status, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  return status;
}

TraceaStatus missing(const char* what) {
  return fail(TRACEA_INVALID_PARAMS, "%s is missing.", what);
}

template <class T>
T* make() {
  return static_cast<T*>(calloc(1, sizeof(T)));
}

// The status of an operation of a context's device.
TraceaStatus status_of(const TsrContext& context, bool ok, const TsrWhy& why) {
  return ok ? TRACEA_SUCCESS : fail(context.functions->failed, "%s", why.text);
}

TraceaStatus no_memory() { return fail(TRACEA_CPU_ERROR, "There is no memory for an object."); }

void count(TsrContext* context, int32_t by) {
  __atomic_fetch_add(&context->objects, by, __ATOMIC_ACQ_REL);
}

}  // namespace

struct TsrModule {
  TsrContext* context;
  void* library;
  size_t (*get_last_error)(char*, size_t);
  const char* (*isa)(void);
  TsrKernel kernels[kKinds];
};

struct TsrStream {
  TsrContext* context;
  void* handle;  // of the device; null on the CPU
};

namespace {

// ---- the CPU --------------------------------------------------------------------------------------

bool nothing(int32_t, TsrWhy*) { return true; }
bool make_nothing(int32_t, void** out, TsrWhy*) { return *out = nullptr, true; }
bool await_nothing(int32_t, void*, TsrWhy*) { return true; }
bool allocate(int32_t, size_t bytes, void** out, TsrWhy* why) {
  return !posix_memalign(out, 64, bytes ? bytes : 1) ||
         why->fail("There is no memory for %zu bytes.", bytes);
}
bool release(int32_t, void* memory, TsrWhy*) { return free(memory), true; }
bool copy(int32_t, void*, void* to, const void* from, size_t bytes, TsrWhy*) {
  return memcpy(to, from, bytes), true;
}
constexpr TsrDevice kHost = {TRACEA_CPU_ERROR, nothing, make_nothing, await_nothing, await_nothing,
                             allocate, release, copy, copy};

// ---- launches -------------------------------------------------------------------------------------

// What a view of zeros stands for.
const TraceaTensorView* given(const TraceaTensorView& view) {
  return view.ptr || view.rank || view.dtype ? &view : nullptr;
}

TraceaStatus run(const TsrKernel& kernel, const TraceaTensorView* a, size_t count,
                 const void* params, void* stream) {
  using View = const TraceaTensorView*;
  if (!strcmp(kernel.name, "program")) {
    using Program = TraceaStatus (*)(const int64_t*, size_t, View, size_t, View, size_t, void*);
    const TsrProgram* program = static_cast<const TsrProgram*>(params);
    if (!program || program->struct_size != sizeof *program || program->inputs > count)
      return fail(TRACEA_INVALID_PARAMS, "The params of a program are a TsrProgram, whose inputs are "
                                         "no more than the arguments.");
    return reinterpret_cast<Program>(kernel.function)(program->plan, program->words, a,
                                                      program->inputs, a + program->inputs,
                                                      count - program->inputs, stream);
  }
  if (kernel.most == 5) {
    using Five = TraceaStatus (*)(View, View, View, View, View, const void*, void*);
    return reinterpret_cast<Five>(kernel.function)(given(a[0]), given(a[1]), given(a[2]),
                                                   given(a[3]), given(a[4]), params, stream);
  }
  using Four = TraceaStatus (*)(View, View, View, View, const void*, void*);
  return reinterpret_cast<Four>(kernel.function)(given(a[0]), given(a[1]), given(a[2]), given(a[3]),
                                                 params, stream);
}

}  // namespace

extern "C" {

TraceaStatus tsrCreateContext(uint32_t abi_version, int32_t device, TsrContext** out) {
  if (!out) return missing("The place for the context");
  *out = nullptr;
  const uint32_t major = abi_version >> 16, minor = abi_version & 0xffff;
  if (major != TSR_ABI_MAJOR || minor > TSR_ABI_MINOR)
    return fail(TRACEA_UNSUPPORTED_CONFIG, "The program needs version %u.%u of tsr.h, this is %d.%d.",
                major, minor, TSR_ABI_MAJOR, TSR_ABI_MINOR);
  const TsrDevice* functions = device == TRACEA_CPU ? &kHost : device >= 0 && tsr_gpus ? tsr_gpus() : nullptr;
  if (!functions)
    return fail(TRACEA_UNSUPPORTED_CONFIG,
                "There is no backend for device %d: this library is for the CPU (device -1); one that "
                "tracea kernels build --target cuda writes is for GPUs as well.", device);
  TsrWhy why;
  if (!functions->open(device, &why)) return fail(TRACEA_UNSUPPORTED_CONFIG, "%s", why.text);
  TsrContext* made = make<TsrContext>();
  if (!made) return no_memory();
  made->functions = functions, made->device = device;
  return *out = made, TRACEA_SUCCESS;
}

TraceaStatus tsrDestroyContext(TsrContext* context) {
  if (!context) return TRACEA_SUCCESS;
  const int32_t left = __atomic_load_n(&context->objects, __ATOMIC_ACQUIRE);
  if (left)
    return fail(TRACEA_INVALID_PARAMS, "The context still has %d modules and streams.", left);
  free(context);
  return TRACEA_SUCCESS;
}

TraceaStatus tsrLoadModule(TsrContext* context, const char* path, TsrModule** out) {
  if (!context || !path || !out) return missing("The context, the path or the place for the module");
  *out = nullptr;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(TRACEA_INVALID_PARAMS, "%.400s", dlerror());
  const auto version = reinterpret_cast<uint32_t (*)(void)>(dlsym(library, "tracea_version"));
  const auto errors = reinterpret_cast<size_t (*)(char*, size_t)>(dlsym(library, "tracea_get_last_error"));
  const auto isa = reinterpret_cast<const char* (*)(void)>(dlsym(library, "tracea_isa"));
  if (!version || !errors || !isa) {
    dlclose(library);
    return fail(TRACEA_INVALID_PARAMS, "%.400s is no library of kernels.", path);
  }
  const uint32_t found = version();
  if (found >> 16 != TRACEA_ABI_MAJOR || static_cast<int>(found & 0xffff) < TRACEA_ABI_MINOR) {
    dlclose(library);
    return fail(TRACEA_UNSUPPORTED_CONFIG, "The module has interface %u.%u, but must have %d.%d.",
                found >> 16, found & 0xffff, TRACEA_ABI_MAJOR, TRACEA_ABI_MINOR);
  }
  TsrModule* made = make<TsrModule>();
  if (!made) return dlclose(library), no_memory();
  made->context = context, made->library = library;
  made->get_last_error = errors, made->isa = isa;
  for (size_t i = 0; i < kKinds; ++i)
    made->kernels[i] = {made, kKnown[i].name, kKnown[i].least, kKnown[i].most,
                        dlsym(library, kKnown[i].symbol)};
  count(context, 1);
  return *out = made, TRACEA_SUCCESS;
}

TraceaStatus tsrUnloadModule(TsrModule* module) {
  if (!module) return TRACEA_SUCCESS;
  count(module->context, -1);
  dlclose(module->library);
  free(module);
  return TRACEA_SUCCESS;
}

const char* tsrModuleIsa(const TsrModule* module) { return module ? module->isa() : ""; }

TraceaStatus tsrGetKernel(TsrModule* module, const char* name, TsrKernel** out) {
  if (!module || !name || !out) return missing("The module, the name or the place for the kernel");
  *out = nullptr;
  for (TsrKernel& kernel : module->kernels)
    if (!strcmp(kernel.name, name) && kernel.function) return *out = &kernel, TRACEA_SUCCESS;
  return fail(TRACEA_INVALID_PARAMS,
              "There is no kernel %.60s: ask for gemm, conv2d, attention, norm or program.", name);
}

TraceaStatus tsrCreateStream(TsrContext* context, TsrStream** out) {
  if (!context || !out) return missing("The context or the place for the stream");
  TsrStream* made = make<TsrStream>();
  *out = made;
  if (!made) return no_memory();
  TsrWhy why;
  if (!context->functions->create_stream(context->device, &made->handle, &why)) {
    free(made);
    return *out = nullptr, status_of(*context, false, why);
  }
  made->context = context;
  count(context, 1);
  return TRACEA_SUCCESS;
}

TraceaStatus tsrSynchronize(TsrStream* stream) {
  if (!stream) return missing("The stream");
  const TsrContext& context = *stream->context;
  TsrWhy why;
  return status_of(context, context.functions->synchronize(context.device, stream->handle, &why), why);
}

TraceaStatus tsrDestroyStream(TsrStream* stream) {
  if (!stream) return TRACEA_SUCCESS;
  TsrContext* const context = stream->context;
  TsrWhy why;
  const bool ok = context->functions->destroy_stream(context->device, stream->handle, &why);
  count(context, -1);
  free(stream);
  return status_of(*context, ok, why);
}

void* tsrStreamHandle(const TsrStream* stream) { return stream ? stream->handle : nullptr; }

TraceaStatus tsrAlloc(TsrContext* context, size_t bytes, void** out) {
  if (!context || !out) return missing("The context or the place for the memory");
  *out = nullptr;
  TsrWhy why;
  return status_of(*context, context->functions->allocate(context->device, bytes, out, &why), why);
}

TraceaStatus tsrFree(TsrContext* context, void* memory) {
  if (!context) return missing("The context");
  TsrWhy why;
  return status_of(*context, context->functions->release(context->device, memory, &why), why);
}

TraceaStatus tsrCopyToDevice(TsrStream* stream, void* to, const void* from, size_t bytes) {
  if (!stream || (bytes && (!to || !from))) return missing("The stream or the memory");
  const TsrContext& context = *stream->context;
  TsrWhy why;
  const bool ok = !bytes || context.functions->to_device(context.device, stream->handle, to, from, bytes, &why);
  return status_of(context, ok, why);
}

TraceaStatus tsrCopyToHost(TsrStream* stream, void* to, const void* from, size_t bytes) {
  if (!stream || (bytes && (!to || !from))) return missing("The stream or the memory");
  const TsrContext& context = *stream->context;
  TsrWhy why;
  const bool ok = !bytes || context.functions->to_host(context.device, stream->handle, to, from, bytes, &why);
  return status_of(context, ok, why);
}

TraceaStatus tsrLaunch(TsrKernel* kernel, TsrStream* stream, const TraceaTensorView* arguments,
                       size_t count, const void* params) {
  if (!kernel || !stream || !arguments) return missing("The kernel, the stream or the arguments");
  if (count < kernel->least || count > kernel->most)
    return fail(TRACEA_INVALID_PARAMS, "%s takes %zu arguments, not %zu.", kernel->name,
                kernel->least, count);
  last_error[0] = 0;
  const TraceaStatus status = run(*kernel, arguments, count, params, stream->handle);
  if (status != TRACEA_SUCCESS && !last_error[0])
    kernel->module->get_last_error(last_error, sizeof last_error);
  return status;
}

size_t tsrGetLastError(char* buf, size_t len) {
  if (buf && len) snprintf(buf, len, "%s", last_error);
  return strlen(last_error);
}
}
