// Reads pairs of thread counts and rounds; prints how many threads a crew knows after each thread
// has joined it once a round.
#include <stdio.h>

#include "runtime/crew.h"

int main() {
  int threads, rounds;
  while (scanf("%d %d", &threads, &rounds) == 2) {
    static tracea::Crew crew;
    crew = {};
    struct Visit {
      tracea::Crew* crew;
      int rounds;
      pthread_barrier_t* all;
    };
    pthread_barrier_t all;
    pthread_barrier_init(&all, nullptr, static_cast<unsigned>(threads) + 1);
    Visit visit = {&crew, rounds, &all};
    const auto come = [](void* usr) -> void* {
      const Visit& at = *static_cast<Visit*>(usr);
      for (int i = 0; i < at.rounds; ++i) tracea::join(*at.crew);
      pthread_barrier_wait(at.all);  // none is over, and its name another's, before all have come
      return nullptr;
    };
    pthread_t* made = new pthread_t[static_cast<size_t>(threads) + 1];
    for (int i = 0; i < threads; ++i) pthread_create(&made[i], nullptr, come, &visit);
    pthread_barrier_wait(&all);
    for (int i = 0; i < threads; ++i) pthread_join(made[i], nullptr);
    printf("%lld\n", static_cast<long long>(tracea::threads_of(crew)));
    delete[] made;
    pthread_barrier_destroy(&all);
  }
}
