// Decompresses the zlib streams of standard input: for each, its bytes, the bytes it should become,
// and itself.  Prints "1" and what it became, or "0".  Memory that may not be touched lies right
// behind the stream and behind the result.
#include "runtime/inflate.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static char* before_a_wall(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (bytes + page - 1) / page * page;
  void* made = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* start = static_cast<char*>(made);
  mprotect(start + whole, page, PROT_NONE);
  return start + whole - bytes;
}

static void release(char* data, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (bytes + page - 1) / page * page;
  munmap(data + bytes - whole, whole + page);
}

int main() {
  int64_t sizes[2];
  tracea::Inflater inflater;
  while (fread(sizes, sizeof sizes, 1, stdin)) {
    const size_t bytes = static_cast<size_t>(sizes[0]), size = static_cast<size_t>(sizes[1]);
    char *stream = before_a_wall(bytes), *made = before_a_wall(size);
    if (fread(stream, 1, bytes, stdin) != bytes) return 1;
    const bool ok = inflater.run(stream, sizes[0], made, sizes[1]);
    putchar(ok ? '1' : '0');
    if (ok) fwrite(made, 1, size, stdout);
    release(stream, bytes), release(made, size);
  }
}
