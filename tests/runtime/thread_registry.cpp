// Reads pairs of thread counts and rounds; prints the threads a registry holds after each thread
// registered itself once a round.
#include <stdio.h>

#include "runtime/thread_registry.h"

int main() {
  int threads, rounds;
  while (scanf("%d %d", &threads, &rounds) == 2) {
    static tracea::ThreadRegistry registry;
    registry = {};
    struct Visit {
      tracea::ThreadRegistry* registry;
      int rounds;
      pthread_barrier_t* all;
    };
    pthread_barrier_t all;
    pthread_barrier_init(&all, nullptr, static_cast<unsigned>(threads) + 1);
    Visit visit = {&registry, rounds, &all};
    const auto visit_all = [](void* usr) -> void* {
      const Visit& at = *static_cast<Visit*>(usr);
      for (int i = 0; i < at.rounds; ++i) tracea::register_thread(*at.registry);
      pthread_barrier_wait(at.all);  // none is over, and its name another's, before all have visit_all
      return nullptr;
    };
    pthread_t* made = new pthread_t[static_cast<size_t>(threads) + 1];
    for (int i = 0; i < threads; ++i) pthread_create(&made[i], nullptr, visit_all, &visit);
    pthread_barrier_wait(&all);
    for (int i = 0; i < threads; ++i) pthread_join(made[i], nullptr);
    printf("%lld\n", static_cast<long long>(tracea::threads_of(registry)));
    delete[] made;
    pthread_barrier_destroy(&all);
  }
}
