// Reads lines of numbers: followers, calls, tasks of a call, milliseconds that the lead rests
// before each call, milliseconds that followers come late.  Prints for each how many tasks were
// run other than once, or were not over when their call was, and whether somebody had gone.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <vector>

#include "runtime/team.h"

namespace {

void rest(int milliseconds) {
  const timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  nanosleep(&time, nullptr);
}

struct Follower {
  tracea::Team* team;
  int late;
};

void* follow(void* usr) {
  const Follower& self = *static_cast<Follower*>(usr);
  if (self.late) rest(self.late);
  self.team->follow();
  return nullptr;
}

}  // namespace

int main() {
  int followers, calls, tasks, rests, late;
  while (scanf("%d %d %d %d %d", &followers, &calls, &tasks, &rests, &late) == 5) {
    tracea::Team team(followers + 1);
    Follower self = {&team, late};
    std::vector<pthread_t> threads(static_cast<size_t>(followers));
    for (pthread_t& thread : threads) pthread_create(&thread, nullptr, follow, &self);
    std::vector<int> times(static_cast<size_t>(tasks));  // plain: a race is the sanitizer's to find
    const auto task = [](void* usr, size_t i) { ++(*static_cast<std::vector<int>*>(usr))[i]; };
    long wrong = 0;
    for (int call = 1; call <= calls; ++call) {
      if (rests) rest(rests);
      team.share(tasks, task, &times);
      for (const int n : times) wrong += n != call;
    }
    const bool thinned = team.thinned();
    team.end();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    printf("%ld %d\n", wrong, thinned);
  }
}
