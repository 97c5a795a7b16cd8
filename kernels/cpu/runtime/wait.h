// How a thread spends the time until something happens: it looks often at first, yields for a while,
// then sleeps.  Where none may spin it looks for no longer than going to sleep and waking up take, and
// never yields: sleeping at once would take no less of the processor.
#pragma once
#include <sched.h>

#include "runtime/debug.h"

namespace tracea {

constexpr int32_t kPauses = 2000;       // 30 to 100 microseconds; who waits longer, yields
constexpr int64_t kYields = 300'000;    // nanoseconds; who waits longer, sleeps
constexpr int64_t kBriefly = 50'000;    // nanoseconds of looking where none may spin
constexpr int32_t kLooksAtClock = 8;    // of so many looks one reads the clock there
constexpr int64_t kPatience = 300'000;  // nanoseconds asleep after which a follower leaves
constexpr int64_t kAsleep = 10'000'000;  // nanoseconds at most asleep, of who is sure to be woken up
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
  explicit Wait(bool spins) : spins_(spins) {}

  // True once it is time to sleep.
  bool look() {
    if (!spins_) return look_briefly();
    if (looks_ < kPauses) return ++looks_, pause(), false;
    const int64_t now = nanoseconds();
    if (!since_) since_ = now;
    if (now - since_ > kYields || crowded_) return true;
    sched_yield();
    return crowded_ = nanoseconds() - now > kOthers, false;
  }

 private:
  bool look_briefly() {
    if (looks_++ % kLooksAtClock) return pause(), false;
    const int64_t now = nanoseconds();
    if (!since_) since_ = now;
    return now - since_ >= kBriefly;
  }

  const bool spins_;
  int32_t looks_ = 0;
  int64_t since_ = 0;  // when it began to yield, or to look briefly
  bool crowded_ = false;
};

}  // namespace tracea
