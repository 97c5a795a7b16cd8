// Reads lines of numbers: followers, calls, tasks of a call, microseconds that the lead rests before
// each call, microseconds that followers come late, microseconds that task 0 takes, 1 where those who
// wait may spin, and 1 where every processor is a group of its own.  Prints for each
// how many tasks were run other than once, or were not over when their call was, whether somebody
// had gone, and the microseconds of processor time that the followers and the lead took.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <vector>

#include "runtime/team.h"

namespace {

void rest(int microseconds) {
  const timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000L};
  if (microseconds) nanosleep(&time, nullptr);
}

// Microseconds of processor time that this thread has taken.
long taken() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

struct Follower {
  tracea::Team* team;
  int late;
  long took;
};

void* follow(void* usr) {
  Follower& self = *static_cast<Follower*>(usr);
  rest(self.late);
  self.team->follow();
  self.took = taken();
  return nullptr;
}

struct Tasks {
  std::vector<int> times;  // plain: a race is the sanitizer's to find
  int first;
};

void task(void* usr, size_t i) {
  Tasks& all = *static_cast<Tasks*>(usr);
  if (!i) rest(all.first);
  ++all.times[i];
}

}  // namespace

int main() {
  int followers, calls, tasks, rests, late, first, spins, grouped;
  const tracea::ProcessorTopology apart = tracea::read_topology("0/1/2/3");
  while (scanf("%d %d %d %d %d %d %d %d", &followers, &calls, &tasks, &rests, &late, &first, &spins, &grouped) == 8) {
    tracea::Team team(followers + 1, spins, grouped ? &apart : nullptr);
    team.lead();
    std::vector<Follower> selves(static_cast<size_t>(followers), {&team, late, 0});
    std::vector<pthread_t> threads(static_cast<size_t>(followers));
    for (int i = 0; i < followers; ++i) pthread_create(&threads[i], nullptr, follow, &selves[i]);
    Tasks all = {std::vector<int>(static_cast<size_t>(tasks)), first};
    long wrong = 0, before = taken(), took = 0;
    for (int call = 1; call <= calls; ++call) {
      rest(rests);
      team.share(tasks, task, &all);
      for (const int n : all.times) wrong += n != call;
    }
    const bool thinned = team.thinned();
    const long lead = taken() - before;
    team.end();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    for (const Follower& self : selves) took += self.took;
    printf("%ld %d %ld %ld\n", wrong, thinned, took, lead);
  }
}
