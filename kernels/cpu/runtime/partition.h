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
constexpr double kClearly = 0.95;   // of the time, below which another division is worth its trouble
constexpr int64_t kStretch = 160;   // the same, of a task among as many as there are threads

inline bool own_lines(const Run& run, int64_t images, int64_t outputs) {
  const int64_t threads = run.divisions();
  return threads > 1 && images % threads && outputs >= kOwnLines * threads;
}

// Lines [first, last) of one block of channels.
struct LineRange {
  int64_t n, block, first, last;
};

struct LinePartition {
  int64_t blocks, height, rows, each;  // lines of a range, and ranges, of a block
  bool by_lines;                       // those of the same lines are neighbours
  int64_t stretches = 0;               // tasks of lines of neighbouring blocks, or 0: a range each

  LinePartition() = default;
  LinePartition(const Run& run, int64_t images, int64_t block_count, int64_t lines, int64_t width,
         int64_t most_rows)
      : blocks(block_count), height(lines), by_lines(own_lines(run, images, lines * width)) {
    each = ceil_div(height, min(height, max(1, most_rows)));
    if (by_lines) each = min(height, ceil_div(each, run.divisions()) * run.divisions());
    rows = ceil_div(height, each);
    const int64_t units = images * blocks, threads = run.divisions();
    if (run.team && threads > 2 && units * each % threads && units * height * width >= kLineWork * threads)
      rows = min(rows, run.even_lines(units, height, ceil_div(kLineWork, width)));
    each = ceil_div(height, rows);
  }

  // Where blocks are no multiple of the threads: tasks become stretches of all lines, each of which ends
  // one block and begins the next.  `together` ranges are a task otherwise.
  void balance(const Run& run, int64_t images, int64_t width, int64_t together) {
    const int64_t threads = run.divisions(), lines = images * blocks * height;
    if (!run.team || threads <= 2 || by_lines) return;
    const int64_t rounds = max(1, min(4, lines * width / (kLineWork * threads)));
    const int64_t tasks = min(threads * rounds, lines * width / kStretch);
    if (tasks < 2) return;
    const int64_t now = ceil_div(ceil_div(images * blocks * each, together), threads) * together * rows;
    const int64_t even = ceil_div(tasks, threads) * ceil_div(lines, tasks);
    if (kClearly * static_cast<double>(now) > static_cast<double>(even)) stretches = tasks;
  }

  // Calls range(lines) for all that a task computes.
  template <class Range>
  void each_range(int64_t index, int64_t images, const Range& range) const {
    if (!stretches) return range(at(index));
    const int64_t lines = images * blocks * height, end = lines * (index + 1) / stretches;
    for (int64_t i = lines * index / stretches; i < end;) {
      const int64_t unit = i / height, first = i % height, last = min(height, first + end - i);
      range(LineRange{unit / blocks, unit % blocks, first, last});
      i += last - first;
    }
  }

  // What tasks compute, one range each, of one image.
  RowTasks tasks() const {
    if (stretches) return lines_of(stretches, stretches, height);
    return lines_of(blocks * each, by_lines ? blocks : blocks * each, by_lines ? rows : height);
  }

  LineRange at(int64_t index) const {
    const int64_t n = index / each / blocks, i = index % (each * blocks);
    const int64_t block = by_lines ? i % blocks : i / each;
    const int64_t first = (by_lines ? i / blocks : i % each) * rows;
    return {n, block, first, min(height, first + rows)};
  }

 private:
  RowTasks lines_of(int64_t tasks, int64_t across, int64_t lines) const {
    RowTasks all = {tasks, tasks, 1, 1};
    all.across = across, all.lines = lines, all.height = height, all.image = true;
    return all;
  }
};

}  // namespace tracea
