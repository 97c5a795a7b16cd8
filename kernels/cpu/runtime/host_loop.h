// What runs the calls of an op.  A library has the loops of a unit if it has kernels for any of them.
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

struct HostLoop {
  Op op;
  bool (*check)(Signature& call);  // what its record does not say; null: nothing
  bool (*run)(Run& run, const Call& call, const TensorView* views);
};

// By op; those of other units are empty.
struct LoopTable {
  HostLoop at[kOps];
  bool held[kOps];
};

template <int N>
constexpr LoopTable by_op(const HostLoop (&loops)[N]) {
  LoopTable table = {};
  for (const HostLoop& loop : loops) table.at[loop.op] = loop, table.held[loop.op] = true;
  return table;
}

constexpr bool has_all(const LoopTable& table, LoopUnit unit) {
  for (int32_t op = 0; op < kOps; ++op)
    if (table.held[op] != (kLoopUnits[op] == unit)) return false;
  return true;
}

}  // namespace tracea
