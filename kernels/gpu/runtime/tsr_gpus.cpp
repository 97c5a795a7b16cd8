// GPUs for tsr.cpp: streams, memory and copies by the driver, which is opened with the first context.
#include <pthread.h>

#include "runtime/driver.h"
#include "runtime/tsr_device.h"

namespace {

namespace cu = tracea::cu;

constexpr int kMostDevices = 64;
struct Gpus {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  bool opened;
  cu::Driver driver;
  cu::Context contexts[kMostDevices];
};
Gpus gpus;

bool good(cu::Result result, const char* what, TsrWhy* why) {
  const char *name = nullptr, *text = nullptr;
  if (!result) return true;
  gpus.driver.error_name(result, &name);
  gpus.driver.error_text(result, &text);
  return why->fail("The GPU's driver could not %s: %s (%s).", what, text ? text : "unknown error",
                   name ? name : "?");
}

bool open_driver(TsrWhy* why) {
  if (gpus.opened) return true;
  if (const char* missing = gpus.driver.open())
    return why->fail("This machine has no driver for GPUs: %s is missing.", missing);
  return good(gpus.driver.init(0), "start", why) && (gpus.opened = true);
}

bool open(int32_t device, TsrWhy* why) {
  pthread_mutex_lock(&gpus.mutex);
  int count = 0;
  cu::Device handle = 0;
  bool ok = open_driver(why) && good(gpus.driver.device_count(&count), "count GPUs", why);
  if (ok && (device >= count || device >= kMostDevices))
    ok = why->fail("There is no GPU %d; this machine shows %d.", device, count);
  if (ok && !gpus.contexts[device])
    ok = good(gpus.driver.device(&handle, device), "find the GPU", why) &&
         good(gpus.driver.retain_context(&gpus.contexts[device], handle), "open the GPU", why);
  pthread_mutex_unlock(&gpus.mutex);
  return ok;
}

// A device for the calling thread, whose own context is back when this ends.
class Entered {
 public:
  Entered(int32_t device, TsrWhy* why) {
    gpus.driver.current_context(&before_);
    ok_ = good(gpus.driver.use_context(gpus.contexts[device]), "switch to the GPU", why);
  }
  ~Entered() {
    if (before_) gpus.driver.use_context(before_);
  }
  Entered(const Entered&) = delete;
  explicit operator bool() const { return ok_; }

 private:
  cu::Context before_ = nullptr;
  bool ok_;
};

cu::Address address_of(const void* memory) { return reinterpret_cast<cu::Address>(memory); }

bool create_stream(int32_t device, void** out, TsrWhy* why) {
  Entered on(device, why);
  cu::Stream made = nullptr;
  if (!on || !good(gpus.driver.create_stream(&made, cu::kNonBlocking), "make a stream", why)) return false;
  return *out = made, true;
}

bool destroy_stream(int32_t device, void* stream, TsrWhy* why) {
  Entered on(device, why);
  return on && good(gpus.driver.destroy_stream(static_cast<cu::Stream>(stream)), "end a stream", why);
}

bool synchronize(int32_t device, void* stream, TsrWhy* why) {
  Entered on(device, why);
  return on && good(gpus.driver.wait_for_stream(static_cast<cu::Stream>(stream)), "finish a stream", why);
}

bool allocate(int32_t device, size_t bytes, void** out, TsrWhy* why) {
  Entered on(device, why);
  cu::Address made = 0;
  if (!on || !good(gpus.driver.allocate(&made, bytes ? bytes : 1), "give memory", why)) return false;
  return *out = reinterpret_cast<void*>(made), true;
}

bool release(int32_t device, void* memory, TsrWhy* why) {
  Entered on(device, why);
  return on && (!memory || good(gpus.driver.free_device(address_of(memory)), "take memory back", why));
}

bool to_device(int32_t device, void* stream, void* to, const void* from, size_t bytes, TsrWhy* why) {
  Entered on(device, why);
  return on && good(gpus.driver.upload_async(address_of(to), from, bytes, static_cast<cu::Stream>(stream)),
                    "copy to the GPU", why);
}

bool to_host(int32_t device, void* stream, void* to, const void* from, size_t bytes, TsrWhy* why) {
  Entered on(device, why);
  return on && good(gpus.driver.download_async(to, address_of(from), bytes, static_cast<cu::Stream>(stream)),
                    "copy from the GPU", why);
}

const TsrDevice functions = {TRACEA_CUDA_ERROR, open, create_stream, destroy_stream, synchronize,
                             allocate, release, to_device, to_host};

}  // namespace

extern "C" const TsrDevice* tsr_gpus(void) { return &functions; }
