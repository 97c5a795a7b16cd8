// How runs at the same time, of all sessions of this library, share its processors.
//
// Four sessions of 16 threads on 16 processors would mostly wait for threads that another session
// keeps from running.  So a run gets what others leave, and never less than an equal share.
#pragma once
#include "runtime/core.h"

namespace tracea {

class ProcessorShares {
 public:
  // Takes processors for a run that can use `wanted` of `all`; returns how many, at least one.
  int32_t take(int64_t wanted, int64_t all) {
    uint64_t was = __atomic_load_n(&taken_, __ATOMIC_RELAXED);
    for (;;) {
      const int64_t runs = static_cast<int64_t>(was >> 32), taken = static_cast<uint32_t>(was);
      const int64_t share = max(1, min(wanted, max(all - taken, all / (runs + 1))));
      const uint64_t now = was + kRun + static_cast<uint64_t>(share);
      if (__atomic_compare_exchange_n(&taken_, &was, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return static_cast<int32_t>(share);
    }
  }

  void give_back(int32_t share) {
    __atomic_fetch_sub(&taken_, kRun + static_cast<uint64_t>(share), __ATOMIC_RELAXED);
  }

  bool idle() const { return __atomic_load_n(&taken_, __ATOMIC_RELAXED) == 0; }

 private:
  static constexpr uint64_t kRun = uint64_t{1} << 32;
  uint64_t taken_ = 0;  // high half: runs; low half: their processors
};

inline ProcessorShares processor_shares;

}  // namespace tracea
