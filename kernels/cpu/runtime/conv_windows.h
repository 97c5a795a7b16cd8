// Convolutions of bytes, channels last, whose windows are multiplied where they lie: a line of taps
// is one run of bytes, so that a row of the product is as many runs as a window has lines.
//
// A task computes some rows of outputs of an image, in some of the columns where the image has few.  Where windows reach past the image, or runs are
// no whole fours, it copies the lines it needs, with padding beside them.
#pragma once
#include "runtime/depthwise_nhwc.h"
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kWindowBytes = 192 * 1024;  // of a task's lines, which stay in L2
constexpr int64_t kGatherCycles = 8;          // for copying a line of a window, about

struct WindowsJob {
  ConvNhwcJob* conv;
  GemmJob gemm;         // of the panels below
  Item item;
  int64_t run, each;    // bytes of a line of taps, and fours
  int64_t rows, tasks;  // rows of outputs of a task; tasks of an image
  bool copies;
  int64_t wide, line;   // bytes of a copied line that windows read, and up to the next one
  int64_t lines;        // bytes of all copied lines of a task
};

// Whether kernels multiply the windows where they lie, and that takes less time than gathering them:
// runs that are no whole fours have products with nothing.
inline bool lies_in_windows(const ConvNhwcJob& job) {
  const int level = level_of(job.gemm.isa->isa);
  if (level < level_of("avx512") || level > level_of("avx512bf16")) return false;
  if (job.sums || job.depthwise || job.groups != 1 || !(job.whole || job.kernel[1] == 1)) return false;
  const int64_t fours = job.kernel[0] * ceil_div(job.kernel[1] * job.depth, 4);
  const int64_t vectors = ceil_div(job.gemm.n, TRACEA_PANEL);
  return (fours - job.gemm.k) * vectors <= kGatherCycles * job.kernel[0];
}

// The panels again, with zeros behind each line of taps up to a whole four.
inline void pack_lines(const WindowsJob& job, const float* w, uint32_t* to) {
  const GemmJob& gemm = job.conv->gemm;
  const int64_t panels = ceil_div(gemm.n, TRACEA_PANEL);
  for (int64_t p = 0; p < panels; ++p) {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(w + p * gemm.w_panel);
    for (int64_t l = 0; l < job.conv->kernel[0]; ++l)
      for (int64_t j = 0; j < job.each; ++j, to += TRACEA_PANEL) {
        const int64_t byte = l * job.run + 4 * j, shift = 8 * (byte % 4), used = min(4, job.run - 4 * j);
        const uint32_t* four = from + byte / 4 * TRACEA_PANEL;
        const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << 8 * used) - 1);
        for (int64_t c = 0; c < TRACEA_PANEL; ++c) {
          const uint64_t both = four[c] | static_cast<uint64_t>(four[TRACEA_PANEL + c]) << 32;
          to[c] = static_cast<uint32_t>(both >> shift) & mask;
        }
      }
    memcpy(to, from + gemm.k * TRACEA_PANEL, TRACEA_PANEL * sizeof *to);  // the sums of the columns
    to += TRACEA_PANEL;
  }
}

// Lines [first, first + count) of an image, with padding where it ends.
inline void copy_lines(const WindowsJob& job, const char* image, int64_t first, int64_t count, char* to) {
  const ConvNhwcJob& conv = *job.conv;
  const int64_t before = min(conv.left * conv.pixel, job.wide);
  const int64_t line = conv.width ? (conv.width - 1) * conv.pixel + conv.depth : 0;
  const int64_t inside = min(line, job.wide - before);
  for (int64_t row = first; row < first + count; ++row, to += job.line) {
    const bool exists = row >= 0 && row < conv.height;
    if (!exists) {
      memset(to, conv.padding, static_cast<size_t>(job.line));
      continue;
    }
    memset(to, conv.padding, static_cast<size_t>(before));
    memcpy(to + before, image + row * conv.line, static_cast<size_t>(inside));
    memset(to + before + inside, conv.padding, static_cast<size_t>(job.line - before - inside));
  }
}

// A task: some columns of some rows of outputs of an image.
inline void windows_task(void* usr, size_t index) {
  const WindowsJob& job = *static_cast<const WindowsJob*>(usr);
  const ConvNhwcJob& conv = *job.conv;
  const int64_t task = static_cast<int64_t>(index) / job.gemm.groups, image = task / job.tasks;
  const int64_t first = conv.rows * (task % job.tasks) / job.tasks;
  const int64_t end = conv.rows * (task % job.tasks + 1) / job.tasks;
  Slots& slots = const_cast<Slots&>(job.gemm.slots);
  const int slot = claim_slot(slots);
  char* memory = memory_of(slots, slot);
  const uint8_t** windows = reinterpret_cast<const uint8_t**>(memory + job.lines);
  const char* x = conv.x + image * conv.image;
  const int64_t top = first * conv.strides[0] - conv.top;
  GemmJob gemm = job.gemm;
  if (job.copies) {
    const int64_t tall = (conv.kernel[0] - 1) * conv.dilations[0] + 1;
    copy_lines(job, x, top, (end - first - 1) * conv.strides[0] + tall, memory);
    x = memory;
  } else {
    x += top * conv.line;
  }
  const int64_t line = job.copies ? job.line : conv.line;
  const uint8_t** at = windows;
  for (int64_t row = first; row < end; ++row, x += conv.strides[0] * line)
    for (int64_t column = 0; column < conv.columns; ++column)
      *at++ = reinterpret_cast<const uint8_t*>(x + column * conv.strides[1] * conv.pixel);
  const int64_t before = image * conv.rows * conv.columns, m = before + first * conv.columns;
  gemm.windows = windows - m, gemm.lines = conv.kernel[0], gemm.line = conv.dilations[0] * line;
  const ByteRows at_rows = {m, before + end * conv.columns, static_cast<int64_t>(index) % gemm.groups};
  multiply_byte_rows(gemm, job.item, at_rows, nullptr, 0, nullptr, nullptr);
  release_slot(slots, slot);
}

// Rows of a task: few enough for their lines to stay in L2, and for every thread to get a task; where
// there are too few, columns are divided, too.
inline void divide_windows(WindowsJob& job, int64_t processors) {
  const ConvNhwcJob& conv = *job.conv;
  const int64_t each = max(kWindowBytes / max(conv.strides[0] * job.line, 1), 1);
  constexpr double kSmall = 1e5;  // multiply-adds below which no thread is woken
  const double work = static_cast<double>(conv.gemm.m) * static_cast<double>(conv.gemm.n) *
                      static_cast<double>(conv.row_bytes);
  const int64_t wanted = processors > 1 && work >= kSmall ? ceil_div(4 * processors, conv.images) : 1;
  const int64_t most = max(conv.rows * conv.columns / kFewPatches, 1);
  job.tasks = min(conv.rows, max(ceil_div(conv.rows, each), min(wanted, most)));
  job.rows = ceil_div(conv.rows, job.tasks);
  divide_byte_columns(job.gemm, conv.images * job.tasks, wanted > 1 ? 2 * processors : 1);
}

inline bool run_windows(Run& run, ConvNhwcJob& conv, const Item& item) {
  WindowsJob job = {};
  job.conv = &conv, job.item = item, job.gemm = conv.gemm;
  job.run = conv.kernel[1] * conv.depth, job.each = ceil_div(job.run, 4);
  const int64_t span = (conv.columns - 1) * conv.strides[1] + conv.kernel[1];
  const int64_t tall = (conv.rows - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilations[0] + 1;
  job.copies = job.run % 4 != 0 || conv.top > 0 || conv.left > 0 || span > conv.width || tall > conv.height;
  job.wide = (span - 1) * conv.pixel + conv.depth;
  job.line = ceil_div(job.wide + 3, kAlign) * kAlign;
  divide_windows(job, run.host.processors);
  const int64_t spread = (conv.kernel[0] - 1) * conv.dilations[0] + 1;
  job.lines = job.copies ? ((job.rows - 1) * conv.strides[0] + spread) * job.line : 0;
  GemmJob& gemm = job.gemm;
  gemm.chunks = job.tasks * conv.images;
  gemm.per_task = 1, gemm.items = 1;
  gemm.x_row = 0;
  gemm.prefetch = 1;
  Scratch panels(run), scratch(run);
  if (job.run % 4 != 0) {
    gemm.k = conv.kernel[0] * job.each;
    gemm.w_panel = (gemm.k + 1) * TRACEA_PANEL;
    char* memory = panels.take(4 * gemm.w_panel * ceil_div(gemm.n, TRACEA_PANEL));
    if (!memory) return false;
    pack_lines(job, item.w, reinterpret_cast<uint32_t*>(memory));
    job.item.w = reinterpret_cast<const float*>(memory);
  }
  gemm.k_block = gemm.k, gemm.k_blocks = 1;
  const int64_t windows = job.rows * conv.columns * static_cast<int64_t>(sizeof(void*));
  const int64_t tasks = conv.images * job.tasks * gemm.groups;
  return make_slots(run, scratch, tasks, job.lines + windows, &gemm.slots) &&
         run.parallel(tasks, windows_task, &job);
}

}  // namespace tracea
