// Reads commands.  "note TIMES PROCESSORS TAKEN TOOK LATE": so many teams one after another, with
// milliseconds that each took and that its lead waited for the others; prints the limit of that many
// processors.  "rest TIME": nothing for so many milliseconds.  "race THREADS TIMES": threads note
// late teams at once; prints the limit.  "run THREADS ASKED LATE TIME": runs calls on as many threads
// as processors, of which those that were asked for are ASKED if that is not 0, for so many
// milliseconds in all; each parallel loop ends LATE milliseconds late; prints the last one's threads.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <thread>
#include <vector>

#include "runtime/executor.h"
#include "runtime/local_host.h"

// Tables of generated code, of which nothing here is a part.
extern "C" {
const tracea_chain_type tracea_chain_types[1] = {};
const tracea::LoopTable* const tracea_loop_tables[1] = {};
}

namespace {

constexpr int64_t kMs = 1'000'000;
int late_ms;
size_t threads_of_loop;

void rest(int milliseconds) {
  const timespec time = {milliseconds / 1000, milliseconds % 1000 * kMs};
  if (milliseconds) nanosleep(&time, nullptr);
}

OrtStatus* late_loop(const OrtKernelContext* context, void (*task)(void*, size_t), size_t total,
                     size_t batch, void* job) {
  OrtStatus* status = tracea::local::parallel_for(context, task, total, batch, job);
  threads_of_loop = total;
  rest(late_ms);
  return status;
}

void nap(void*, size_t) { rest(1); }

void run(int threads, int asked, int milliseconds) {
  tracea::ThreadRegistry registry = {};
  tracea::Host host = {};
  host.api = tracea::local_api(), host.registry = &registry;
  host.processors = threads, host.debug.processors = asked, host.spins = false;
  tracea::Program program = {};
  program.call_count = 3;
  tracea::local_threads.set_threads(threads);
  while (registry.count < threads - 1) {  // until all of them are known
    tracea::Run first(host, nullptr);
    first.parallel(threads, nap, nullptr);
  }
  const int64_t end = tracea::nanoseconds() + milliseconds * kMs;
  while (tracea::nanoseconds() < end) {
    tracea::Run one(host, nullptr);
    tracea::execute(one, program, nullptr, nullptr,
                    [&](int32_t) { return one.parallel(threads, nap, nullptr); });
  }
  tracea::local_threads.stop();
}

}  // namespace

int main() {
  tracea::fill_local_api();
  tracea::local_slots[ort::kKernelContext_ParallelFor] = reinterpret_cast<void*>(late_loop);
  tracea::TeamLimit limit;
  int64_t now = 0;
  char command[8];
  int a, b, c, d, e;
  while (scanf("%7s", command) == 1) {
    if (!strcmp(command, "rest") && scanf("%d", &a) == 1) now += a * kMs;
    if (!strcmp(command, "note") && scanf("%d %d %d %d %d", &a, &b, &c, &d, &e) == 5) {
      for (int i = 0; i < a; ++i) now += d * kMs, limit.note(b, c, d * kMs, e * kMs, now);
      printf("%d ", limit.of(b));
    }
    if (!strcmp(command, "race") && scanf("%d %d", &a, &b) == 2) {
      std::vector<std::thread> threads;
      for (int i = 0; i < a; ++i)
        threads.emplace_back([&, i] {
          for (int n = 0; n < b; ++n) limit.note(64, limit.of(64), 9 * kMs, 8 * kMs, (n * a + i) * kMs);
        });
      for (std::thread& thread : threads) thread.join();
      printf("%d ", limit.of(64));
    }
    if (!strcmp(command, "run") && scanf("%d %d %d %d", &a, &b, &late_ms, &c) == 4) {
      run(a, b, c);
      printf("%zu ", threads_of_loop);
    }
  }
}
