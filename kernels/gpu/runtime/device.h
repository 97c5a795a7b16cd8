// The GPUs of this process: whether each is usable, its loaded kernels and its uploaded weights.
#pragma once
#include <pthread.h>
#include <unistd.h>

#include "runtime/digest.h"
#include "runtime/driver.h"
#include "runtime/inflate.h"
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

// One copy of a constant in device memory, shared by every session that has equal bytes.
struct Weight {
  uint64_t digest[2];
  int64_t bytes;
  cu::Address address;
  int32_t users;
  Weight* next;
};

// Results computed from constants alone, shared by all nodes with the same plan and weights.
struct Prepared {
  uint64_t digest[2];
  int32_t users, count;
  cu::Address* temps;  // 0 for buffers that change from run to run
  Prepared* next;
};

// One GPU and the state that all nodes on it share.
struct Device {
  bool known;
  cu::Device handle;
  cu::Context context;
  int32_t level;    // index of its architecture in the library's table
  int32_t multiprocessors;
  bool dependents;  // supports programmatic dependent launch
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  cu::Function* functions;
  int32_t* shared;  // most shared memory that each may take
  Weight* weights;
  pthread_mutex_t preparing = PTHREAD_MUTEX_INITIALIZER;
  Prepared* prepared;
};

constexpr int kMostDevices = 64;

struct Gpu {
  cu::Driver driver;
  int count;  // number of GPUs
  pid_t process;
  cu::Result lost;  // sticky error: every call returns it after a GPU failed
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  Device devices[kMostDevices];
};
inline Gpu gpu;

// Checks a driver call; on failure the error names the call and the driver's reason.
inline bool good(Error& error, cu::Result result, const char* what) {
  if (!result) return true;
  const char *name = nullptr, *text = nullptr;
  gpu.driver.error_name(result, &name);
  gpu.driver.error_text(result, &text);
  if (cu::is_final(result)) __atomic_store_n(&gpu.lost, result, __ATOMIC_RELAXED);
  return error.fail("The GPU's driver could not %s: %s (%s).", what, text ? text : "unknown error",
                    name ? name : "?");
}

// The best level for a compute capability, or -1.
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

// The device index given by TRACEA_CUDA_DEVICE, 0 by default.
inline bool wanted_device(Error& error, int32_t* ordinal) {
  const char* wish = getenv("TRACEA_CUDA_DEVICE");
  char* end = nullptr;
  const long number = wish && *wish ? strtol(wish, &end, 10) : 0;
  if (end && (*end || number < 0 || number > INT32_MAX))
    return error.fail("TRACEA_CUDA_DEVICE is '%.40s', but must be the number of a GPU.", wish);
  return *ordinal = static_cast<int32_t>(number), true;
}

// Queries a device on first use; the error says why it cannot run this library's kernels.
inline Device* device_at(Error& error, int32_t ordinal) {
  if (ordinal < 0 || ordinal >= min(gpu.count, kMostDevices))
    return error.fail("There is no GPU %d; this machine shows %d.", ordinal, gpu.count), nullptr;
  Lock lock(gpu.mutex);
  Device& device = gpu.devices[ordinal];
  if (device.known) return &device;
  const cu::Driver& d = gpu.driver;
  int major = 0, minor = 0;
  if (!good(error, d.device(&device.handle, ordinal), "find the GPU") ||
      !good(error, d.device_attribute(&major, cu::kMajor, device.handle), "describe the GPU") ||
      !good(error, d.device_attribute(&minor, cu::kMinor, device.handle), "describe the GPU") ||
      !good(error,
            d.device_attribute(&device.multiprocessors, cu::kMultiprocessors, device.handle),
            "describe the GPU"))
    return nullptr;
  device.level = level_for(10 * major + minor);
  if (device.level < 0)
    return error.fail("The compute capability of GPU %d is %d.%d, which this library has no "
                      "kernels for.", ordinal, major, minor), nullptr;
  const char* edges = getenv("TRACEA_CUDA_EDGES");
  device.dependents = major >= 9 && !(edges && !strcmp(edges, "full"));
  device.known = true;
  return &device;
}

// Selects a usable device; the error says why there is none.
inline bool find_device(Error& error) {
  const char* wish = getenv("TRACEA_DEVICE");
  if (wish && !strcmp(wish, "cpu")) return error.fail("TRACEA_DEVICE asks for the CPU.");
  if (const char* missing = gpu.driver.open())
    return error.fail("This machine has no driver for GPUs: %s is missing.", missing);
  int version = 0;
  int32_t ordinal = 0;
  const cu::Driver& d = gpu.driver;
  if (!good(error, d.init(0), "start") || !good(error, d.driver_version(&version), "say its version"))
    return false;
  if (version < tracea_gpu_table.driver)
    return error.fail("The GPU's driver is for CUDA %d.%d; kernels need one for CUDA %d.%d.",
                      version / 1000, version % 1000 / 10, tracea_gpu_table.driver / 1000,
                      tracea_gpu_table.driver % 1000 / 10);
  gpu.process = getpid();
  return good(error, d.device_count(&gpu.count), "count GPUs") && wanted_device(error, &ordinal) &&
         device_at(error, ordinal);
}

// Makes the device's context current on this thread.
inline bool enter(Error& error, Device& device) {
  if (getpid() != gpu.process)
    return error.fail("This process was forked from one that uses the GPU, which it cannot do.");
  if (const cu::Result lost = __atomic_load_n(&gpu.lost, __ATOMIC_RELAXED)) {
    good(error, lost, "go on since a kernel or the GPU failed; start the process again");
    return false;
  }
  if (!__atomic_load_n(&device.context, __ATOMIC_ACQUIRE)) {
    Lock lock(device.mutex);
    cu::Context made = nullptr;
    if (!device.context) {
      if (!good(error, gpu.driver.retain_context(&made, device.handle), "open the GPU"))
        return false;
      __atomic_store_n(&device.context, made, __ATOMIC_RELEASE);
    }
  }
  return good(error, gpu.driver.use_context(device.context), "switch to the GPU");
}

// Decompresses an image and gives it to the driver, which keeps a copy.
inline bool load_image(Error& error, const tracea_gpu_image& image, cu::Module* out) {
  const size_t bytes = static_cast<size_t>(image.bytes);
  unsigned char* data = static_cast<unsigned char*>(malloc(bytes + 1));
  if (!data) return error.fail("There is no memory for a kernel's image.");
  data[bytes] = 0;  // PTX is a string
  Inflater inflater;
  const bool ok =
      inflater.run(tracea_gpu_images + image.offset, image.stored, data, image.bytes)
          ? good(error, gpu.driver.load_module(out, data), "load a kernel")
          : error.fail("The library is damaged: it does not hold the kernel %.200s.", image.symbol);
  free(data);
  return ok;
}

// A kernel of the table, loaded on first use; null if this architecture has no image of it.
inline bool load_kernel(Error& error, Device& device, int32_t index, int32_t shared,
                        cu::Function* out) {
  Lock lock(device.mutex);
  const tracea_gpu_library& table = tracea_gpu_table;
  const size_t count = static_cast<size_t>(table.kernel_count);
  if (!device.functions)
    device.functions = static_cast<cu::Function*>(calloc(count, sizeof(cu::Function)));
  if (!device.shared) device.shared = static_cast<int32_t*>(calloc(count, sizeof(int32_t)));
  if (!device.functions || !device.shared) return error.fail("There is no memory for the kernels.");
  cu::Function& held = device.functions[index];
  if (!held) {
    const tracea_gpu_image& image = table.kernels[index].images[device.level];
    if (!image.bytes) return *out = nullptr, true;
    cu::Module module = nullptr;
    if (!load_image(error, image, &module) ||
        !good(error, gpu.driver.function(&held, module, image.symbol), "find a kernel"))
      return false;
  }
  *out = held;
  int32_t& most = device.shared[index];
  // An SM that changes how it divides its memory between L1 and blocks has to be idle for that, so
  // that a kernel could not start beside the one before it: all of these ask for the same.
  if (shared > 0 && !most &&
      !good(error, gpu.driver.set_function(held, cu::kPreferredCarveout, 100),
            "choose how an SM divides its memory"))
    return false;
  const bool large = shared > max(most, 48 << 10);
  if (shared > most) most = shared;
  return !large || good(error, gpu.driver.set_function(held, cu::kMaxDynamicShared, shared),
                        "give a kernel its shared memory");
}

inline bool allocate(Error& error, int64_t bytes, cu::Address* out) {
  const cu::Result result = gpu.driver.allocate(out, static_cast<size_t>(max(bytes, 1)));
  if (result == cu::kOutOfMemory)
    return error.fail("The GPU has no %lld MB of memory left.",
                      static_cast<long long>(bytes >> 20));
  return good(error, result, "give memory");
}

// Uploads a constant, or returns the copy that is already on the device.
inline Weight* take_weight(Error& error, Device& device, const void* data, int64_t bytes,
                           const uint64_t* digest) {
  Lock lock(device.mutex);
  for (Weight* held = device.weights; held; held = held->next)
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
  made->bytes = bytes, made->users = 1, made->next = device.weights;
  return device.weights = made;
}

inline void release_weight(Device& device, Weight* weight) {
  if (!weight) return;
  Lock lock(device.mutex);
  if (--weight->users) return;
  for (Weight** at = &device.weights; *at; at = &(*at)->next)
    if (*at == weight) {
      *at = weight->next;
      break;
    }
  gpu.driver.free_device(weight->address);
  free(weight);
}

}  // namespace tracea
