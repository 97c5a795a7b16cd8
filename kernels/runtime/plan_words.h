// The words of a plan, read in order.  No word is trusted; after the first error every read gives
// the smallest legal value.
#pragma once
#include "runtime/core.h"

namespace tracea {

constexpr int32_t kLoose = 16;  // the bit of an input's first axis above its rank

// Input and axis whose size a symbol takes.
struct Symbol {
  int32_t input, axis;
};

class PlanWords {
 protected:
  PlanWords(const int64_t* words, int64_t count, Pool& pool, Error& error)
      : at_(words), end_(words + count), error_(error), pool_(pool) {}

  int64_t word(int64_t low, int64_t high, const char* what) {
    if (error_.set) return low;
    if (at_ == end_) return error_.fail("The plan ends too early, at its %s.", what), low;
    const int64_t value = *at_++;
    if (value >= low && value <= high) return value;
    error_.fail("The plan's %s is %lld, but must lie in %lld .. %lld.", what,
                static_cast<long long>(value), static_cast<long long>(low),
                static_cast<long long>(high));
    return low;
  }
  int32_t small(int64_t low, int64_t high, const char* what) {
    return static_cast<int32_t>(word(low, high, what));
  }
  template <class T>
  T* array(int64_t count) {
    T* items = pool_.array<T>(count);
    if (!items) error_.fail("There is no memory for a plan.");
    return items;
  }
  void header(int64_t magic, int64_t version) {
    const int64_t words = end_ - at_;
    word(magic, magic, "first word");
    if (word(0, INT64_MAX, "version") != version)
      error_.fail("The plan was written for another version of this library.");
    word(words, words, "length");
  }
  bool finished() {
    if (!error_.set && at_ != end_) error_.fail("The plan goes on after its end.");
    return !error_.set;
  }
  int32_t type() {
    const int32_t code = small(1, 32, "element type");
    if (!element_size(code))
      error_.fail("The plan names element type %d, which it cannot hold.", code);
    return code;
  }
  // The rank of a tensor, and the bits of those of its axes that may have a size of 1 as well.
  void rank(int32_t* rank, int32_t* loose) {
    const int32_t both = small(0, (kLoose << kMaxRank) - 1, "rank");
    *rank = both % kLoose, *loose = both / kLoose;
    if (*rank > kMaxRank || *loose >> *rank)
      error_.fail("The plan's rank is %d, but must lie in 0 .. %d.", both, kMaxRank);
  }

  const int64_t *at_, *end_;
  Error& error_;

 private:
  Pool& pool_;
};

}  // namespace tracea
