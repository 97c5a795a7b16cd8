// Pinned memory of the host, through which inputs and outputs pass, in blocks that are locked one by one.
#pragma once
#include "runtime/device.h"
#include "runtime/launch.h"

namespace tracea {

// A slot takes one of the parts in which large tensors pass the first block.  Locking the pages of a
// block takes about 1.2 ms (0.6 a MB), so that a run locks at most one.
constexpr int64_t kSlots = 8, kSlot = 256 << 10, kBlock = kSlots * kSlot;

struct Pinned {
  char** blocks;  // of kBlock bytes each, except that a first one alone may be smaller
  int64_t count, bytes;

  bool holds(int64_t wanted) const { return wanted <= bytes; }
  char* first() const { return count ? blocks[0] : nullptr; }
  char* at(int64_t offset) const { return blocks[offset / kBlock] + offset % kBlock; }

  // Makes the first block hold so many bytes, kBlock at most.  It grows by factors of two, so that
  // sizes that rise slowly do not lock pages each time, and moves.  The driver locks pages for many
  // small blocks at once, and unlocks them with the last one: so the new one comes first.
  bool grow(Error& error, int64_t wanted) {
    int64_t room = max(bytes, 4 << 10);
    while (room < min(wanted, kBlock)) room *= 2;
    if (count && room == bytes) return true;
    Pinned made = {};
    if (!made.add(error, room)) return made.release(), false;
    release();
    return *this = made, true;
  }

  // Locks one block more; those before stay where they are.
  bool add(Error& error, int64_t room = kBlock) {
    char** const more =
        static_cast<char**>(realloc(blocks, static_cast<size_t>(count + 1) * sizeof *blocks));
    if (!more) return error.fail("There is no memory for a run.");
    blocks = more;
    void* made = nullptr;
    if (!good(error, gpu.driver.allocate_host(&made, static_cast<size_t>(room), cu::kPortable),
              "give memory of the host"))
      return false;
    blocks[count++] = static_cast<char*>(made), bytes += room;
    return true;
  }

  void release() {
    for (int64_t i = 0; i < count; ++i) gpu.driver.free_host(blocks[i]);
    free(blocks);
    *this = {};
  }
};

}  // namespace tracea
