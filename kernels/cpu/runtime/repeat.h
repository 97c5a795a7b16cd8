// Broadcast inputs: repeat an axis of size 1 to the size that the other inputs have there.
#pragma once
#include "runtime/guard.h"

namespace tracea {

// Memory of one run.
struct Repeats {
  Pool pool;
  ~Repeats() { pool.release(); }
};

// Replaces `memory` by a copy expanded from sizes `from` to sizes `to`; axes that differ have size 1 in `from`.
inline bool repeat(Run& run, const Tensor& tensor, const int64_t* from, const int64_t* to,
                   Repeats& repeats, Memory* memory) {
  const int64_t size = element_size(tensor.type);
  int64_t count = 1, bytes = 0;
  for (int32_t axis = 0; axis < tensor.rank; ++axis)
    if (to[axis] < 0 || __builtin_mul_overflow(count, to[axis], &count))
      return run.error.fail("An input repeats into too many elements.");
  char* made = __builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX / 4
                   ? nullptr
                   : repeats.pool.array<char>(max(bytes, 1));
  if (!made) return run.error.fail("There is no memory for an input that repeats.");
  repeat(tensor, from, to, memory->data, bytes, made);
  *memory = {made, count};
  return true;
}

}  // namespace tracea
