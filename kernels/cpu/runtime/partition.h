// Partition of the lines of blocked values among tasks.
//
// Reading from another core's cache is several times slower than from one's own.  Each thread
// therefore reads what it wrote in the previous call: neighbouring tasks go to the same thread, by
// lines if an image is large and by channels if it has few lines.
#pragma once
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kOwnLines = 256;  // outputs of a block for each thread, to have lines of its own
constexpr int64_t kLineWork = 256;  // outputs of a block worth a task of their own

inline bool own_lines(const Run& run, int64_t images, int64_t outputs) {
  const int64_t threads = run.threads();
  return threads > 1 && images % threads && outputs >= kOwnLines * threads;
}

// Lines [first, last) of one block of channels.
struct LineRange {
  int64_t n, block, first, last;
};

struct LinePartition {
  int64_t blocks, height, rows, each;  // lines of a range, and ranges, of a block
  bool by_lines;                       // those of the same lines are neighbours

  LinePartition() = default;
  LinePartition(const Run& run, int64_t images, int64_t block_count, int64_t lines, int64_t width,
         int64_t most_rows)
      : blocks(block_count), height(lines), by_lines(own_lines(run, images, lines * width)) {
    each = ceil_div(height, min(height, max(1, most_rows)));
    if (by_lines) each = min(height, ceil_div(each, run.threads()) * run.threads());
    rows = ceil_div(height, each);
    const int64_t units = images * blocks, threads = run.threads();
    if (run.team && threads > 2 && units * each % threads && units * height * width >= kLineWork * threads)
      rows = min(rows, run.even_lines(units, height, ceil_div(kLineWork, width)));
    each = ceil_div(height, rows);
  }

  // What tasks compute, one range each, of one image.
  RowTasks tasks() const {
    RowTasks all = {blocks * each, blocks * each, 1, 1};
    all.across = by_lines ? blocks : blocks * each, all.lines = by_lines ? rows : height;
    all.height = height, all.image = true;
    return all;
  }

  LineRange at(int64_t index) const {
    const int64_t n = index / each / blocks, i = index % (each * blocks);
    const int64_t block = by_lines ? i % blocks : i / each;
    const int64_t first = (by_lines ? i / blocks : i % each) * rows;
    return {n, block, first, min(height, first + rows)};
  }
};

}  // namespace tracea
