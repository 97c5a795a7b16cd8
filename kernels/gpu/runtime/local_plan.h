// Plans that functions of tracea.h launch: decoded once and kept by a device, and launched into the
// caller's stream, with scratch taken and given back in the order of the stream.
#pragma once
#include "runtime/c_checks.h"
#include "runtime/inputs.h"
#include "runtime/run.h"

namespace tracea {

struct LocalPlan {
  uint64_t digest[2];
  int64_t count;
  Program program;
  cu::Function* functions;  // of launches
  LocalPlan* next;

  static void destroy(LocalPlan* plan) {
    plan->program.pool.release();
    free(plan);
  }
};

// What the functions keep for a device.
struct LocalDevice {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  LocalPlan* plans;
  int32_t plan_count;
  cu::Address zero;  // a float32 of 0, which stands for a bias that is left out
};
inline LocalDevice local_devices[kMostDevices];

constexpr int32_t kKeptPlans = 512;

// Opens the driver, once; a failure says why no GPU can be used.
inline bool open_driver(Failure& failure) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static bool tried;
  static Error error;
  Lock lock(mutex);
  if (!tried) find_device(error);
  tried = true;
  return !error.set || failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "%s", error.text);
}

// The device that tracea_isa tells of.
inline Device* usual_device(Failure& failure, int32_t* ordinal) {
  Error error;
  if (!open_driver(failure)) return nullptr;
  Device* device = wanted_device(error, ordinal) ? device_at(error, *ordinal) : nullptr;
  if (!device) failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "%s", error.text);
  return device;
}

// A device for the calling thread, whose own context is back when this ends.
class Entered {
 public:
  Entered(Failure& failure, int32_t ordinal) : ordinal_(ordinal) {
    Error error;
    if (!open_driver(failure)) return;
    Device* device = device_at(error, ordinal);
    if (device) gpu.driver.current_context(&before_);
    if (device && enter(error, *device)) device_ = device;
    else failure.refuse(device ? TRACEA_CUDA_ERROR : TRACEA_UNSUPPORTED_CONFIG, "%s", error.text);
  }
  ~Entered() {
    if (device_ && before_) gpu.driver.use_context(before_);
  }
  Entered(const Entered&) = delete;

  explicit operator bool() const { return device_ != nullptr; }
  Device& device() const { return *device_; }
  LocalDevice& local() const { return local_devices[ordinal_]; }

 private:
  int32_t ordinal_;
  Device* device_ = nullptr;
  cu::Context before_ = nullptr;
};

inline LocalPlan* decode_plan(Failure& failure, Device& device, const int64_t* words, int64_t count) {
  LocalPlan* made = static_cast<LocalPlan*>(calloc(1, sizeof(LocalPlan)));
  if (!made) return failure.refuse(TRACEA_CPU_ERROR, "There is no memory for a plan."), nullptr;
  Program& p = made->program;
  Error error;
  TraceaStatus status = TRACEA_INVALID_PARAMS;
  bool ok = Reader(words, count, &p, &error).program();
  if (ok) {
    status = TRACEA_CUDA_ERROR;
    made->functions = p.pool.array<cu::Function>(p.launch_count + 1);
    ok = made->functions || error.fail("There is no memory for a plan.");
  }
  for (int32_t i = 0; ok && i < p.launch_count; ++i) {
    ok = load_kernel(error, device, p.launches[i].kernel, p.launches[i].shared, &made->functions[i]);
    if (ok && !made->functions[i] && !p.launches[i].others) {
      status = TRACEA_UNSUPPORTED_CONFIG;
      ok = error.fail("This library has no kernel of that type for this GPU.");
    }
  }
  if (ok) return made;
  failure.refuse(status, "%s", error.text);
  return LocalPlan::destroy(made), nullptr;
}

// The plan of these words, decoded; `kept`: by the device, else the caller destroys it.
inline LocalPlan* find_plan(Failure& failure, const Entered& on, const int64_t* words, int64_t count,
                            bool* kept) {
  LocalDevice& local = on.local();
  uint64_t digest[2];
  digest_of(words, count * 8, digest);
  Lock lock(local.mutex);
  *kept = true;
  for (LocalPlan* held = local.plans; held; held = held->next)
    if (held->count == count && held->digest[0] == digest[0] && held->digest[1] == digest[1])
      return held;
  LocalPlan* made = decode_plan(failure, on.device(), words, count);
  if (!made) return nullptr;
  made->count = count, made->digest[0] = digest[0], made->digest[1] = digest[1];
  *kept = local.plan_count < kKeptPlans;
  if (*kept) made->next = local.plans, local.plans = made, ++local.plan_count;
  return made;
}

// Launches a program whose tensors lie at `addresses`, inputs first; behind them is room for temps.
inline bool launch_all(Error& error, const Device& device, const LocalPlan& plan,
                       const int64_t* symbols, cu::Address* addresses, cu::Stream stream, Pool& pool) {
  const Program& p = plan.program;
  const cu::Driver& d = gpu.driver;
  int64_t* sizes = pool.array<int64_t>(p.size_count + 1);
  Layout layout = {};
  layout.counts = pool.array<int64_t>(p.buffer_count());
  layout.offsets = pool.array<int64_t>(p.buffer_count());
  if (!sizes || !layout.counts || !layout.offsets) return error.fail("There is no memory for a run.");
  Shared shared = {};
  shared.program = &p, shared.constants = addresses;
  evaluate(p, symbols, sizes);
  if (!count_buffers(error, p, sizes, layout.counts)) return false;
  lay_out(shared, layout);
  cu::Address arena = 0;
  if (layout.bytes) {
    const cu::Result made = d.allocate_async(&arena, static_cast<size_t>(layout.bytes), stream);
    if (made == cu::kOutOfMemory)
      return error.fail("The GPU has no %lld MB of memory left.",
                        static_cast<long long>(layout.bytes >> 20));
    if (!good(error, made, "give memory")) return false;
  }
  auto address = [&](int32_t buffer) {
    return addresses[buffer] ? addresses[buffer]
                             : arena + static_cast<uint64_t>(layout.offsets[buffer]);
  };
  bool ok = true;
  for (int32_t i = 0; ok && i < p.launch_count; ++i) {
    Ready ready;
    i = chosen(p, plan.functions, i, sizes, address);
    ok = make_ready(error, device, p.launches[i], plan.functions[i], sizes, layout.counts, nullptr,
                    address, pool, &ready) &&
         start(error, ready, stream);
    i += p.launches[i].others;
  }
  return (!arena || good(error, d.free_async(arena, stream), "take memory back")) && ok;
}

}  // namespace tracea
