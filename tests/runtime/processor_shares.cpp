// Reads commands: "take WANTED ALL" prints the share, "give SHARE" gives one back, "race THREADS
// TIMES ALL" takes and gives back at once on all threads and prints the most and the least share
// that anyone got, "fork" goes on in a child.  Prints at the end whether nothing is taken.
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/processor_shares.h"

int main() {
  tracea::ProcessorShares shares;
  char command[8];
  int a, b, c;
  while (scanf("%7s", command) == 1) {
    if (!strcmp(command, "take") && scanf("%d %d", &a, &b) == 2) printf("%d ", shares.take(a, b));
    if (!strcmp(command, "give") && scanf("%d", &a) == 1) shares.give_back(a);
    if (!strcmp(command, "fork")) {
      fflush(stdout);
      if (fork()) return wait(nullptr) > 0 ? 0 : 1;
    }
    if (!strcmp(command, "race") && scanf("%d %d %d", &a, &b, &c) == 3) {
      std::vector<int> most(static_cast<size_t>(a)), least(most.size(), c);
      std::vector<std::thread> threads;
      for (size_t i = 0; i < most.size(); ++i)
        threads.emplace_back([&, i] {
          for (int n = 0; n < b; ++n) {
            const int share = shares.take(c, c);
            most[i] = std::max(most[i], share), least[i] = std::min(least[i], share);
            shares.give_back(share);
          }
        });
      for (std::thread& thread : threads) thread.join();
      printf("%d %d ", *std::max_element(most.begin(), most.end()),
             *std::min_element(least.begin(), least.end()));
    }
  }
  printf("%d\n", shares.idle());
}
