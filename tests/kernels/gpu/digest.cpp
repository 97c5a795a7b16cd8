// Prints the digests of the byte strings on standard input, each after its length.  Memory that may
// not be touched lies right behind each of them.
#include "runtime/digest.h"

#include <stdio.h>
#include <sys/mman.h>

int main() {
  static tracea::Digested items[64];
  static uint64_t digests[64][2];
  tracea::Digests all = {items, 0, nullptr, 0, 0};
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (int64_t bytes; fread(&bytes, sizeof bytes, 1, stdin);) {
    const size_t size = static_cast<size_t>(bytes), whole = (size + page - 1) / page * page;
    char* const start = static_cast<char*>(
        mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(start + whole, page, PROT_NONE);
    char* const data = start + whole - size;
    if (all.count == 64 || fread(data, 1, size, stdin) != size) return 1;
    items[all.count] = {data, bytes, digests[all.count], all.total};
    ++all.count, all.total += tracea::Digests::parts_of(bytes);
  }
  uint64_t* const parts = new uint64_t[static_cast<size_t>(2 * all.total + 1)];
  all.parts = parts;
  all.run();
  for (int32_t i = 0; i < all.count; ++i)
    printf("%016llx%016llx\n", static_cast<unsigned long long>(digests[i][0]),
           static_cast<unsigned long long>(digests[i][1]));
  delete[] parts;
  return 0;
}
