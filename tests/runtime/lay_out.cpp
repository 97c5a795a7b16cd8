// Reads the number of temps and of each its first call, last call and bytes; prints their offsets
// and the size of the arena, as the library's runtime lays them out.
#include <stdio.h>

#include "runtime/run.h"

int main() {
  static tracea::Temp temps[tracea::kMaxTemps];
  static int64_t sizes[tracea::kMaxTemps], offsets[tracea::kMaxTemps];
  tracea::Program program = {};
  program.temps = temps;
  while (scanf("%d", &program.temp_count) == 1) {
    for (int i = 0; i < program.temp_count; ++i) {
      long long size;
      if (scanf("%d %d %lld", &temps[i].first, &temps[i].last, &size) != 3) return 1;
      sizes[i] = size;
    }
    const int64_t total = tracea::lay_out(program, sizes, offsets);
    for (int i = 0; i < program.temp_count; ++i)
      printf("%lld ", static_cast<long long>(offsets[i]));
    printf("%lld\n", static_cast<long long>(total));
  }
}
