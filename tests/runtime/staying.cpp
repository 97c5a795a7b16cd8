// Reads lines of numbers: workers, calls, tasks of a call, microseconds that the last task of each takes,
// and 1 where those who wait may spin.  Runs a program of such calls four times, on a pool of as many
// workers.  Prints how many parallel loops the last run began, how many tasks were run other than once, and
// microseconds of processor time: of the lead in the last run, of the worker that took most in it, and of
// the one that took most in the twentieth of a second after it.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <vector>

#include "runtime/executor.h"
#include "runtime/local_host.h"

// Tables of generated code, of which nothing here is a part.
extern "C" {
const tracea_chain_type tracea_chain_types[1] = {};
const tracea::LoopTable* const tracea_loop_tables[1] = {};
}

namespace {

int loops;

OrtStatus* count_loop(const OrtKernelContext* context, void (*task)(void*, size_t), size_t total,
                      size_t batch, void* job) {
  ++loops;
  return tracea::local::parallel_for(context, task, total, batch, job);
}

void rest(int microseconds) {
  const timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000L};
  if (microseconds) nanosleep(&time, nullptr);
}

struct Tasks {
  std::vector<int> times;  // plain: a race is the sanitizer's to find
  int last;
};

void task(void* usr, size_t i) {
  Tasks& all = *static_cast<Tasks*>(usr);
  if (i + 1 == all.times.size()) rest(all.last);
  ++all.times[i];
}

void nap(void*, size_t) { rest(1000); }

// Microseconds of processor time that this thread has taken, then each worker.
std::vector<long> taken(const tracea::ThreadRegistry& registry) {
  std::vector<pthread_t> threads = {pthread_self()};
  threads.insert(threads.end(), registry.helper, registry.helper + registry.count);
  std::vector<long> all;
  for (const pthread_t thread : threads) {
    clockid_t clock;
    timespec now = {};
    if (!pthread_getcpuclockid(thread, &clock)) clock_gettime(clock, &now);
    all.push_back(now.tv_sec * 1000000 + now.tv_nsec / 1000);
  }
  return all;
}

long most_of_workers(const std::vector<long>& before, const std::vector<long>& after) {
  long most = 0;
  for (size_t i = 1; i < before.size(); ++i)
    if (after[i] - before[i] > most) most = after[i] - before[i];
  return most;
}

}  // namespace

int main() {
  constexpr int kRuns = 4;
  tracea::fill_local_api();
  tracea::local_slots[ort::kKernelContext_ParallelFor] = reinterpret_cast<void*>(count_loop);
  int workers, calls, tasks, last, spins;
  while (scanf("%d %d %d %d %d", &workers, &calls, &tasks, &last, &spins) == 5) {
    tracea::ThreadRegistry registry = {};
    tracea::Host host = {};
    host.api = tracea::local_api(), host.registry = &registry;
    host.processors = workers + 1, host.spins = spins;
    tracea::Program program = {};
    program.call_count = calls;
    tracea::local_threads.set_threads(workers + 1);
    Tasks all = {std::vector<int>(static_cast<size_t>(tasks)), last};
    while (registry.count < workers) {  // until all of them are known
      tracea::Run run(host, nullptr);
      run.parallel(workers + 1, nap, nullptr);
    }
    std::vector<long> before, after;
    for (int i = 0; i < kRuns; ++i) {
      before = taken(registry), loops = 0;
      tracea::Run run(host, nullptr);
      tracea::execute(run, program, nullptr, nullptr,
                      [&](int32_t) { return run.parallel(tasks, task, &all); });
      after = taken(registry);
    }
    rest(50'000);
    const std::vector<long> later = taken(registry);
    long wrong = 0;
    for (const int times : all.times) wrong += times != kRuns * calls;
    printf("%d %ld %ld %ld %ld\n", loops, wrong, after[0] - before[0], most_of_workers(before, after),
           most_of_workers(after, later));
    tracea::local_threads.stop();
  }
}
