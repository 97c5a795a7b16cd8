// Inputs that broadcast: a loose axis of size 1 is repeated as often as others are long.
#pragma once
#include "runtime/trace.h"

namespace tracea {

// Memory of one run.
struct Repeats {
  Pool pool;
  ~Repeats() { pool.release(); }
};

// What a symbol stands for whose own axis may be 1: the size of an axis it names that is not.
inline int64_t widest(const Program& program, const Memory* constants, const int64_t* dims,
                      int32_t symbol) {
  const Symbol& own = program.symbols[symbol];
  const int64_t size = dims[own.input * kMaxRank + own.axis];
  if (size != 1 || !(program.tensors[own.input].loose >> own.axis & 1)) return size;
  for (int32_t i = 0; i < program.input_count; ++i)
    for (int32_t axis = 0; !constants[i].data && axis < program.tensors[i].rank; ++axis) {
      const Expr& named = program.tensors[i].dims[axis];
      if (named.form == Expr::kIsSymbol && named.value == symbol &&
          dims[i * kMaxRank + axis] != 1)
        return dims[i * kMaxRank + axis];
    }
  return size;
}

// Lets `memory`, of sizes `from`, have sizes `to`: axes that differ have a size of 1.
inline bool repeat(Run& run, const Tensor& tensor, const int64_t* from, const int64_t* to,
                   Repeats& repeats, Memory* memory) {
  const int64_t size = element_size(tensor.type);
  int64_t count = 1, bytes = 0, chunk = size, place[kMaxRank] = {};
  for (int32_t axis = 0; axis < tensor.rank; ++axis)
    if (to[axis] < 0 || __builtin_mul_overflow(count, to[axis], &count))
      return run.error.fail("An input repeats into too many elements.");
  char* made = __builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX / 4
                   ? nullptr
                   : repeats.pool.array<char>(max(bytes, 1));
  if (!made) return run.error.fail("There is no memory for an input that repeats.");
  int32_t outer = tensor.rank;  // what lies behind these axes is as it was
  while (outer > 0 && from[outer - 1] == to[outer - 1]) chunk *= to[--outer];
  for (int64_t done = 0; done < bytes; done += chunk) {
    int64_t at = 0;
    for (int32_t axis = 0; axis < outer; ++axis)
      at = at * from[axis] + (from[axis] == to[axis] ? place[axis] : 0);
    memcpy(made + done, memory->data + at * chunk, static_cast<size_t>(chunk));
    for (int32_t axis = outer; axis-- > 0 && ++place[axis] == to[axis];) place[axis] = 0;
  }
  *memory = {made, count};
  return true;
}

}  // namespace tracea
