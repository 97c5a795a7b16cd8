// Reads lines and prints how work is divided among the threads of a team:
//
//   conv threads pixels height width blocks work: a pointwise convolution of one image, whose kernel's
//     widest tile has so many outputs, and columns of two blocks.  Prints tiles, tasks along the
//     image, columns in all and of a task, and outputs of a column that the busiest thread computes.
//   lines threads height width blocks: lines of an image's channels.  Prints the number of tasks, and
//     for each line of each block how many tasks compute it.
//   rows threads images height: rows of a task of a first layer.
//   even threads slowness parts tasks: parts that tasks become, on processors of which the slowest
//     runs one in the time of so many.
#include <stdio.h>
#include <string.h>

#include <memory>
#include <vector>

#include "runtime/conv_first_layer.h"
#include "runtime/conv_tiling.h"
#include "runtime/partition.h"

namespace {

using tracea::ceil_div;

// A run whose session has so many threads, all of which stay with it.
struct Session {
  tracea::ThreadRegistry registry = {};
  tracea::Host host = {};
  tracea::ProcessorTopology topology;
  std::unique_ptr<tracea::Team> team;
  std::unique_ptr<tracea::Run> run;

  explicit Session(long threads, int slowness = 1) {
    topology.slowness = slowness, host.topology = &topology;
    registry.count = static_cast<int32_t>(threads - 1);
    host.registry = &registry, host.processors = static_cast<int32_t>(threads), host.spins = true;
    team = std::make_unique<tracea::Team>(threads, host.spins);
    run = std::make_unique<tracea::Run>(host, nullptr);
    run->team = team.get();
  }
};

void divide_conv() {
  long threads, pixels, height, width, blocks, work;
  if (scanf("%ld %ld %ld %ld %ld %ld", &threads, &pixels, &height, &width, &blocks, &work) != 6) return;
  tracea::ConvJob job = {};
  job.images = job.groups = job.lines = job.units = job.height = 1;
  job.blocks = job.per_group = blocks, job.pixels = pixels, job.width = height * width;
  job.across = ceil_div(job.width, pixels), job.columns = ceil_div(blocks, 2);
  const double input = static_cast<double>(job.width * blocks * 64);
  tracea::share_evenly(job, threads, {static_cast<double>(work), input, input});
  std::vector<long> busy(static_cast<size_t>(threads));
  const long tasks = job.h_tasks * job.chunks, shares = tracea::min(threads, tasks);
  for (long share = 0; share < shares; ++share)
    for (long task = tasks * share / shares; task < tasks * (share + 1) / shares; ++task) {
      const long h = task / job.chunks, first = task % job.chunks * job.per_task;
      const long columns = tracea::min(job.columns, first + job.per_task) - first;
      for (long t = job.across * h / job.h_tasks; t < job.across * (h + 1) / job.h_tasks; ++t)
        busy[static_cast<size_t>(share)] += columns * (job.narrow + (t < job.wider));
    }
  long most = 0;
  for (const long one : busy) most = tracea::max(most, one);
  printf("%ld %ld %ld %ld %ld\n", static_cast<long>(job.across), static_cast<long>(job.h_tasks),
         static_cast<long>(job.columns), static_cast<long>(job.per_task), most);
}

void divide_lines() {
  long threads, height, width, blocks;
  if (scanf("%ld %ld %ld %ld", &threads, &height, &width, &blocks) != 4) return;
  Session session(threads);
  tracea::LinePartition pieces(*session.run, 1, blocks, height, width, height);
  pieces.balance(*session.run, 1, width, 1);
  const long tasks = pieces.stretches ? pieces.stretches : blocks * pieces.each;
  std::vector<int> times(static_cast<size_t>(blocks * height));
  for (long task = 0; task < tasks; ++task)
    pieces.each_range(task, 1, [&](const tracea::LineRange& lines) {
      for (long i = lines.first; i < lines.last; ++i)
        ++times[static_cast<size_t>(lines.block * height + i)];
    });
  printf("%ld", tasks);
  for (const int one : times) printf(" %d", one);
  printf("\n");
}

void divide_rows() {
  long threads, images, height;
  if (scanf("%ld %ld %ld", &threads, &images, &height) != 3) return;
  Session session(threads);
  printf("%ld\n", static_cast<long>(tracea::split_rows(*session.run, images, height)));
}

void divide_evenly() {
  long threads, parts, tasks;
  int slowness;
  if (scanf("%ld %d %ld %ld", &threads, &slowness, &parts, &tasks) != 4) return;
  Session session(threads, slowness);
  printf("%ld\n", static_cast<long>(session.run->even(parts, tasks)));
}

}  // namespace

int main() {
  char what[8];
  while (scanf("%7s", what) == 1) {
    if (!strcmp(what, "conv")) divide_conv();
    else if (!strcmp(what, "lines")) divide_lines();
    else if (!strcmp(what, "rows")) divide_rows();
    else divide_evenly();
  }
}
