// How runs at the same time, of all sessions of this library, share its processors.
//
// Four sessions of 16 threads on 16 processors would mostly wait for threads that another session
// keeps from running.  So a run gets what others leave, and never less than an equal share.
#pragma once
#include <unistd.h>

#include "runtime/core.h"

namespace tracea {

class ProcessorShares {
 public:
  // Takes processors for a run that can use `wanted` of `all`; returns how many, at least one, or 0
  // where there are more runs than can be counted.
  int32_t take(int64_t wanted, int64_t all) {
    uint64_t was = __atomic_load_n(&taken_, __ATOMIC_RELAXED);
    for (;;) {
      const uint64_t before = of_this_process(was);
      const int64_t runs = static_cast<int64_t>(before >> kRuns) & kMost;
      const int64_t taken = static_cast<int64_t>(before) & kMost;
      const int64_t share = max(1, min(min(wanted, all), max(all - taken, all / (runs + 1))));
      if (runs == kMost || taken + share > kMost) return 0;
      const uint64_t now = before + kRun + static_cast<uint64_t>(share);
      if (__atomic_compare_exchange_n(&taken_, &was, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return static_cast<int32_t>(share);
    }
  }

  void give_back(int32_t share) {
    if (share) __atomic_fetch_sub(&taken_, kRun + static_cast<uint64_t>(share), __ATOMIC_RELAXED);
  }

  // Processors that runs have.
  int64_t taken() const {
    return static_cast<int64_t>(of_this_process(__atomic_load_n(&taken_, __ATOMIC_RELAXED))) & kMost;
  }

  bool idle() const {
    return static_cast<uint32_t>(of_this_process(__atomic_load_n(&taken_, __ATOMIC_RELAXED))) == 0;
  }

 private:
  static constexpr int kRuns = 16, kProcess = 32;
  static constexpr int64_t kMost = (1 << kRuns) - 1;
  static constexpr uint64_t kRun = uint64_t{1} << kRuns;

  // A fork leaves its child the shares of runs that it does not have.
  static uint64_t of_this_process(uint64_t word) {
    const uint64_t process = static_cast<uint64_t>(getpid()) << kProcess;
    return word >> kProcess == process >> kProcess ? word : process;
  }

  uint64_t taken_ = 0;  // from the lowest bit: processors, runs, process
};

inline ProcessorShares processor_shares;

}  // namespace tracea
