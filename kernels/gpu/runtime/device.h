// The device of this process: whether it can be used, its kernels, and weights on it.
#pragma once
#include <pthread.h>
#include <unistd.h>

#include "runtime/driver.h"
#include "runtime/plan.h"

namespace tracea {

class Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

// Memory of the device that holds the same bytes for everyone who asked for them.
struct Weight {
  uint64_t digest[2];
  int64_t bytes;
  cu::Address address;
  int32_t users;
  Weight* next;
};

// What was made of constants once, for every node of the same plan and weights.
struct Prepared {
  uint64_t digest[2];
  int32_t users, count;
  cu::Address* temps;  // 0: not constant
  Prepared* next;
};

struct Gpu {
  cu::Driver driver;
  cu::Context context;
  cu::Device device;
  int32_t capability, level, ordinal;
  bool dependents;  // kernels may start before those they wait for have ended
  pid_t process;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  cu::Function* functions;
  Weight* weights;
  pthread_mutex_t preparing = PTHREAD_MUTEX_INITIALIZER;
  Prepared* prepared;
};
inline Gpu gpu;

// Whether a call of the driver succeeded; an error says what was tried, and what came of it.
inline bool good(Error& error, cu::Result result, const char* what) {
  if (!result) return true;
  const char *name = nullptr, *text = nullptr;
  gpu.driver.error_name(result, &name);
  gpu.driver.error_text(result, &text);
  return error.fail("The GPU's driver could not %s: %s (%s).", what, text ? text : "unknown error",
                    name ? name : "?");
}

// The best level a capability can run, or -1.
inline int32_t level_for(int32_t capability) {
  const tracea_gpu_library& table = tracea_gpu_table;
  int32_t found = -1;
  for (int32_t i = 0; i < table.level_count; ++i) {
    const tracea_gpu_level& level = table.levels[i];
    const bool same = level.capability / 10 == capability / 10;
    const bool older = level.capability <= capability;
    if (level.exact && !level.text ? level.capability == capability
                                   : older && (level.text || same))
      if (found < 0 || table.levels[found].text || !level.text) found = i;
  }
  return found;
}

// Finds the device; an error says why there is none to use.
inline bool find_device(Error& error) {
  const char* wish = getenv("TRACEA_DEVICE");
  if (wish && !strcmp(wish, "cpu")) return error.fail("TRACEA_DEVICE asks for the CPU.");
  if (const char* missing = gpu.driver.open())
    return error.fail("This machine has no driver for GPUs: %s is missing.", missing);
  int version = 0, count = 0, major = 0, minor = 0;
  const cu::Driver& d = gpu.driver;
  if (!good(error, d.init(0), "start") || !good(error, d.driver_version(&version), "say its version"))
    return false;
  if (version < tracea_gpu_table.driver)
    return error.fail("The GPU's driver is for CUDA %d.%d; kernels need one for CUDA %d.%d.",
                      version / 1000, version % 1000 / 10, tracea_gpu_table.driver / 1000,
                      tracea_gpu_table.driver % 1000 / 10);
  if (!good(error, d.device_count(&count), "count GPUs")) return false;
  const char* number = getenv("TRACEA_CUDA_DEVICE");
  gpu.ordinal = number ? atoi(number) : 0;
  if (gpu.ordinal < 0 || gpu.ordinal >= count)
    return error.fail("There is no GPU %d; this machine shows %d.", gpu.ordinal, count);
  if (!good(error, d.device(&gpu.device, gpu.ordinal), "find the GPU") ||
      !good(error, d.device_attribute(&major, cu::kMajor, gpu.device), "describe the GPU") ||
      !good(error, d.device_attribute(&minor, cu::kMinor, gpu.device), "describe the GPU"))
    return false;
  gpu.capability = 10 * major + minor;
  gpu.level = level_for(gpu.capability);
  if (gpu.level < 0)
    return error.fail("The GPU's compute capability is %d.%d, which this library has no kernels for.",
                      major, minor);
  const char* edges = getenv("TRACEA_CUDA_EDGES");
  gpu.dependents = gpu.capability >= 90 && !(edges && !strcmp(edges, "full"));
  gpu.process = getpid();
  return true;
}

// Makes the device's context that of this thread.
inline bool enter(Error& error) {
  if (getpid() != gpu.process)
    return error.fail("This process was forked from one that uses the GPU, which it cannot do.");
  if (!gpu.context) {
    Lock lock(gpu.mutex);
    cu::Context made = nullptr;
    if (!gpu.context) {
      if (!good(error, gpu.driver.retain_context(&made, gpu.device), "open the GPU")) return false;
      __atomic_store_n(&gpu.context, made, __ATOMIC_RELEASE);
    }
  }
  return good(error, gpu.driver.use_context(gpu.context), "switch to the GPU");
}

// A kernel of the table, loaded once in this process.
inline bool load_kernel(Error& error, int32_t index, int32_t shared, cu::Function* out) {
  Lock lock(gpu.mutex);
  const tracea_gpu_library& table = tracea_gpu_table;
  if (!gpu.functions)
    gpu.functions = static_cast<cu::Function*>(
        calloc(static_cast<size_t>(table.kernel_count), sizeof(cu::Function)));
  if (!gpu.functions) return error.fail("There is no memory for the kernels.");
  cu::Function& held = gpu.functions[index];
  if (!held) {
    const tracea_gpu_image& image = table.kernels[index].images[gpu.level];
    cu::Module module = nullptr;
    if (!good(error, gpu.driver.load_module(&module, tracea_gpu_images + image.offset),
              "load a kernel") ||
        !good(error, gpu.driver.function(&held, module, image.symbol), "find a kernel"))
      return false;
  }
  *out = held;
  // a kernel's tile is one, so all its launches ask for as much
  return shared <= 48 << 10 ||
         good(error, gpu.driver.set_function(held, cu::kMaxDynamicShared, shared),
              "give a kernel its shared memory");
}

inline bool allocate(Error& error, int64_t bytes, cu::Address* out) {
  const cu::Result result = gpu.driver.allocate(out, static_cast<size_t>(max(bytes, 1)));
  if (result == cu::kOutOfMemory)
    return error.fail("The GPU has no %lld MB of memory left.",
                      static_cast<long long>(bytes >> 20));
  return good(error, result, "give memory");
}

// Four lanes, so that one multiplication does not wait for another: memory limits it.
inline void digest_of(const void* data, int64_t bytes, uint64_t* out) {
  constexpr uint64_t kFactor = 0xff51afd7ed558ccdu;
  const unsigned char* at = static_cast<const unsigned char*>(data);
  uint64_t lanes[4] = {0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(bytes), 0xc2b2ae3d27d4eb4fu,
                       0x165667b19e3779f9u, 0x27d4eb2f165667c5u};
  for (; bytes > 0; bytes -= 32, at += 32) {
    uint64_t words[4] = {};
    memcpy(words, at, bytes < 32 ? static_cast<size_t>(bytes) : 32);
    for (int i = 0; i < 4; ++i)
      lanes[i] = (lanes[i] ^ words[i]) * kFactor, lanes[i] ^= lanes[i] >> 29;
  }
  uint64_t a = lanes[0], b = lanes[3];
  for (int i = 1; i < 4; ++i) {
    a = (a ^ lanes[i]) * 0xc4ceb9fe1a85ec53u, a ^= a >> 31;
    b = (b + lanes[3 - i]) * 0x2127599bf4325c37u, b ^= b >> 29;
  }
  out[0] = a, out[1] = b;
}

// The bytes of a constant on the device: equal ones are there once.
inline Weight* take_weight(Error& error, const void* data, int64_t bytes, const uint64_t* digest) {
  Lock lock(gpu.mutex);
  for (Weight* held = gpu.weights; held; held = held->next)
    if (held->bytes == bytes && held->digest[0] == digest[0] && held->digest[1] == digest[1])
      return ++held->users, held;
  Weight* made = static_cast<Weight*>(calloc(1, sizeof(Weight)));
  if (!made) return error.fail("There is no memory for a weight."), nullptr;
  if (!allocate(error, bytes, &made->address)) return free(made), nullptr;
  if (bytes && !good(error, gpu.driver.upload(made->address, data, static_cast<size_t>(bytes)),
                     "take a weight")) {
    gpu.driver.free_device(made->address);
    return free(made), nullptr;
  }
  made->digest[0] = digest[0], made->digest[1] = digest[1];
  made->bytes = bytes, made->users = 1, made->next = gpu.weights;
  return gpu.weights = made;
}

inline void release_weight(Weight* weight) {
  if (!weight) return;
  Lock lock(gpu.mutex);
  if (--weight->users) return;
  for (Weight** at = &gpu.weights; *at; at = &(*at)->next)
    if (*at == weight) {
      *at = weight->next;
      break;
    }
  gpu.driver.free_device(weight->address);
  free(weight);
}

}  // namespace tracea
