// What the generated table.cpp holds: the library's levels and op types, and the shape of each
// chain, so that a plan cannot hand a compiled chain fewer operands than it reads.
#pragma once
#include <stdint.h>

#include "runtime/kernels.h"
#include "runtime/op_type.h"

// The generated table (table.cpp): defined once per library, read by the runtime.
typedef struct {
  const char* domain;          // "tracea.<10 hex>"
  int32_t isas;                // levels present, lowest first
  const tracea_isa_table* isa;
  int32_t types;
  const tracea_op_type* type;
} tracea_library;
extern "C" const tracea_library tracea_library_table;

namespace tracea {
struct LoopTable;
extern const LoopTable image_loops, further_loops;
}  // namespace tracea

// The units of host loops besides the runtime's own, by LoopUnit; null for those it has no kernels of.
extern "C" const tracea::LoopTable* const tracea_loop_tables[];

enum { TRACEA_FULL, TRACEA_ROW, TRACEA_COL, TRACEA_SCALAR };

typedef struct {
  int64_t key;
  int32_t operands, results;
  uint8_t kind[TRACEA_MAX_OPERANDS];  // TRACEA_FULL ...
  uint8_t type[TRACEA_MAX_OPERANDS];  // ONNX element codes
  uint8_t result[TRACEA_MAX_RESULTS];
  // 1: operand 0 times 1 plus 2 (both rows), rounded, plus zero, as an unsigned byte; 2: operand 3,
  // unsigned bytes, is added as `sum` says; 3: the byte numbers one of `table`; 4: operand 0 times 1,
  // rounded and limited, times sum.times plus operand 2, times sum.added_times + sum.offset (the
  // parts of a reciprocal), rounded, plus zero, as a byte, which numbers one of `table` if there is one
  int32_t rounds, zero;
  tracea_added_bytes sum;
  const uint8_t* table;  // 256 bytes, or null
} tracea_chain_type;

// By ascending key, one row more than used.
extern "C" const tracea_chain_type tracea_chain_types[];
extern "C" const int32_t tracea_chain_count;

namespace tracea {

// The index of a chain, or -1.  Equals its index in every `tracea_isa_table`.
inline int32_t find_chain(int64_t key) {
  int32_t low = 0, high = tracea_chain_count;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (tracea_chain_types[middle].key < key) low = middle + 1;
    else high = middle;
  }
  return low < tracea_chain_count && tracea_chain_types[low].key == key ? low : -1;
}

}  // namespace tracea
