// Reads what Linux says of processors: DEVICES PROCESSORS GROUPS, the folder, those that may be used as
// a list, and groups to use instead or "".  Prints count, groups, slowness, clusters and cores, and the
// processors in the order of their ranks where these matter.
#include <stdio.h>

#include "runtime/processor_topology.h"

int main(int, char** argv) {
  tracea::ProcessorSet mine;
  const char* list = argv[2];
  if (!tracea::read_processors(&list, &mine) || *list) return 1;
  tracea::TopologyReader reader(argv[1], mine);
  const tracea::ProcessorTopology all = reader.read(*argv[3] ? argv[3] : nullptr);
  printf("%d %d %d %d %d", all.count, all.groups, all.slowness, all.clusters, reader.cores());
  for (int i = 0; i < all.count && all.differs(); ++i)
    for (int p = 0; p < tracea::kMostRanked; ++p)
      if (all.rank(p) == i) printf(" %d", p);
  printf("\n");
}
