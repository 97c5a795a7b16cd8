// How a thread spends the time until something happens: it looks often at first, yields for a while,
// then sleeps.
#pragma once
#include <sched.h>

#include "runtime/debug.h"

namespace tracea {

constexpr int32_t kPauses = 2000;       // 30 to 100 microseconds; who waits longer, yields
constexpr int64_t kYields = 300'000;    // nanoseconds; who waits longer, sleeps
constexpr int64_t kPatience = 300'000;  // nanoseconds asleep after which a follower leaves
constexpr int64_t kOthers = 200'000;    // nanoseconds of a yield in which others ran

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  sched_yield();
#endif
}

class Wait {
 public:
  // True once it is time to sleep.
  bool look() {
    if (looks_ < kPauses) return ++looks_, pause(), false;
    const int64_t now = nanoseconds();
    if (!yields_) yields_ = now;
    if (now - yields_ > kYields || crowded_) return true;
    sched_yield();
    return crowded_ = nanoseconds() - now > kOthers, false;
  }

 private:
  int32_t looks_ = 0;
  int64_t yields_ = 0;  // since when
  bool crowded_ = false;
};

}  // namespace tracea
