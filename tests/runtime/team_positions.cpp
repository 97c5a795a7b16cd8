// Reads lines: `take members processors` and the processors on which threads come, one after another;
// `share members shares`.  Processors 0, 1, ... are in order, and every second one begins a group.
// Prints the positions that threads get; or, for each position, the share that it begins with, as a negative
// number - 1 where another position does so too, and how often it looks at each share in all.
#include <stdio.h>
#include <string.h>

#include <vector>

#include "runtime/team_positions.h"

namespace {

tracea::ProcessorTopology in_order(int processors) {
  tracea::ProcessorTopology all;
  all.count = processors, all.groups = processors / 2;
  for (int p = 0; p < processors; ++p) all.ranked[p] = static_cast<uint16_t>(p + 1);
  return all;
}

}  // namespace

int main() {
  char what[16];
  for (int members, number; scanf("%15s %d %d", what, &members, &number) == 3; printf("\n")) {
    const bool takes = !strcmp(what, "take");
    const tracea::ProcessorTopology topology = in_order(takes ? number : 4);
    tracea::TeamPositions positions = {};
    positions.init(members, &topology);
    unsigned arrival = 0;
    for (int processor; takes && scanf("%d", &processor) == 1;) {
      printf("%u ", positions.take(arrival++, processor));
      const int next = getchar();
      if (next == '\n' || next == EOF) break;
    }
    if (takes) continue;
    const unsigned shares = static_cast<unsigned>(number);
    std::vector<int> looks(shares);
    for (unsigned position = 0; position < static_cast<unsigned>(members); ++position) {
      const int own = static_cast<int>(positions.share_of(position, shares));
      printf("%d ", positions.begins(position, shares) ? own : -own - 1);
      if (positions.share_after(position, 0, shares) != static_cast<unsigned>(own)) printf("wrong ");
      for (unsigned i = 0; i < shares; ++i) ++looks[positions.share_after(position, i, shares)];
    }
    for (const int times : looks) printf(": %d", times);
  }
}
