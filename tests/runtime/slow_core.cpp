// Reads lines: followers, calls, tasks of a call, microseconds of a task, and how many times as long
// the first follower takes, as on a slow core.  Tasks sleep, so they need no processor of their own.
// Prints how many tasks that follower ran, how many there were, and the microseconds of a call.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <vector>

#include "runtime/team.h"

namespace {

thread_local int slowness = 1;
thread_local long ran = 0;

struct Follower {
  tracea::Team* team;
  int slowness;
  long ran;
};

void* follow(void* usr) {
  Follower& self = *static_cast<Follower*>(usr);
  slowness = self.slowness;
  self.team->follow();
  self.ran = ran;
  return nullptr;
}

void task(void* usr, size_t) {
  const long us = *static_cast<long*>(usr) * slowness;
  const timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, nullptr);
  ++ran;
}

}  // namespace

int main() {
  int followers, calls, tasks, factor;
  for (long us; scanf("%d %d %d %ld %d", &followers, &calls, &tasks, &us, &factor) == 5;) {
    tracea::Team team(followers + 1, true);
    team.lead();
    std::vector<Follower> selves(static_cast<size_t>(followers), {&team, 1, 0});
    std::vector<pthread_t> threads(selves.size());
    selves[0].slowness = factor;
    for (size_t i = 0; i < selves.size(); ++i) pthread_create(&threads[i], nullptr, follow, &selves[i]);
    const int64_t begin = tracea::nanoseconds();
    for (int call = 0; call < calls; ++call) team.share(tasks, task, &us);
    const int64_t took = tracea::nanoseconds() - begin;
    team.end();
    for (const pthread_t thread : threads) pthread_join(thread, nullptr);
    printf("%ld %d %ld\n", selves[0].ran, calls * tasks, static_cast<long>(took / calls / 1000));
  }
}
