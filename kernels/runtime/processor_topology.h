// Which processors are near each other: they share a core, an L2, an L3 or a memory node, as Linux
// describes it.  Elsewhere, and where Linux says nothing, all are equally near.
#pragma once
#if defined(__linux__)
#include <sched.h>

#include "runtime/quota.h"
#endif
#include "runtime/core.h"

namespace tracea {

constexpr int32_t kMostRanked = 1024;  // processors; later ones have no rank
constexpr uint16_t kNoGroup = 0xffff;

class ProcessorSet {
 public:
  bool has(int64_t i) const { return i >= 0 && i < kMostRanked && (word_[i / 64] >> (i % 64) & 1); }
  void add(int64_t i) {
    if (i >= 0 && i < kMostRanked) word_[i / 64] |= uint64_t{1} << (i % 64);
  }
  // The first processor from `i` on, or kMostRanked.
  int32_t next(int32_t i) const {
    while (i < kMostRanked && !has(i)) ++i;
    return i;
  }
  int32_t count() const {
    int32_t sum = 0;
    for (const uint64_t word : word_) sum += __builtin_popcountll(word);
    return sum;
  }
  ProcessorSet operator&(const ProcessorSet& other) const {
    ProcessorSet both;
    for (int i = 0; i < kMostRanked / 64; ++i) both.word_[i] = word_[i] & other.word_[i];
    return both;
  }

 private:
  uint64_t word_[kMostRanked / 64] = {};
};

// The processors that a process may use.  Neighbours in rank share the most: a core, then an L2, an L3,
// a memory node; of an L3 the fast ones come first.
struct ProcessorTopology {
  int32_t count = 0;     // that have ranks
  int32_t groups = 1;    // of those that share an L3 and a memory node
  int32_t slowness = 1;  // tasks that the fastest runs in the time of the slowest, rounded up
  bool clusters = false;  // several cores share an L2, but not all of a group
  uint16_t ranked[kMostRanked] = {};  // by processor: its rank + 1, or 0 for none

  // Whether it matters which processor a thread runs on.
  bool differs() const { return groups > 1 || clusters; }

  // The rank of a processor, or -1.
  int32_t rank(int32_t processor) const {
    return processor >= 0 && processor < kMostRanked ? ranked[processor] - 1 : -1;
  }
};

// Adds what a list such as `0-3,8` has; false, with nothing added, if it is none.
inline bool read_processors(const char** text, ProcessorSet* out) {
#if defined(__linux__)
  ProcessorSet found;
  for (const char* at = *text;; ++at) {
    const int64_t first = read_number(&at);
    int64_t last = first;
    if (*at == '-') last = read_number(&++at);
    if (first < 0 || last < first) return false;
    for (int64_t i = first; i <= min(last, kMostRanked - 1); ++i) found.add(i);
    if (*at == ',') continue;
    *text = at;
    break;
  }
  for (int32_t i = found.next(0); i < kMostRanked; i = found.next(i + 1)) out->add(i);
  return true;
#else
  (void)text, (void)out;
  return false;
#endif
}

// Reads groups of processors such as `0-3,8/4-7`; returns how many, or 0 if the text means nothing.
inline int32_t read_groups(const char* text, uint16_t (&group)[kMostRanked]) {
  for (uint16_t& one : group) one = kNoGroup;
  for (int32_t groups = 0; groups < kNoGroup; ++text) {
    ProcessorSet set;
    if (!read_processors(&text, &set)) return 0;
    for (int32_t i = set.next(0); i < kMostRanked; i = set.next(i + 1))
      group[i] = static_cast<uint16_t>(groups);
    ++groups;
    if (!*text) return groups;
    if (*text != '/') return 0;
  }
  return 0;
}

#if defined(__linux__)

// Reads the descriptions below a folder, by default /sys/devices.
class TopologyReader {
 public:
  TopologyReader(const char* devices, const ProcessorSet& mine) : devices_(devices), mine_(mine) {
    count_ = mine.count();
  }

  // `groups`: to use instead of what the system says, or null.
  ProcessorTopology read(const char* groups) {
    ProcessorTopology all;
    all.count = count_;
    if (!groups || !read_groups(groups, l3_)) read_l3();
    all.groups = number_groups();
    all.slowness = read_capacities();
    const bool clusters = may_cluster();
    if (all.groups > 1 || clusters) share(l2_, "cache/index2/shared_cpu_list", true);
    if (all.groups > 1 || clusters) share(core_, "topology/thread_siblings_list", true);
    all.clusters = clusters && differs_within();
    if (all.differs()) rank(all);
    return all;
  }

  // Physical cores.
  int32_t cores() {
    share(core_, "topology/thread_siblings_list", true);
    int32_t found = 0;
    each([&](int32_t p) { found += core_[p] == p; });
    return found;
  }

 private:
  static constexpr uint16_t kFull = 1024, kHalf = 512;  // capacities

  template <class Visit>
  void each(const Visit& visit) const {
    for (int32_t p = mine_.next(0); p < kMostRanked; p = mine_.next(p + 1)) visit(p);
  }

  bool file(const char* name, char (&text)[kMostRead]) const {
    char path[kMostRead];
    return snprintf(path, sizeof path, "%s/%s", devices_, name) < static_cast<int>(sizeof path) &&
           read_text(path, text);
  }

  bool list(const char* name, ProcessorSet* set) const {
    char text[kMostRead];
    const char* at = text;
    return file(name, text) && read_processors(&at, set);
  }

  bool list_of(int32_t processor, const char* what, ProcessorSet* set) const {
    char name[128];
    snprintf(name, sizeof name, "system/cpu/cpu%d/%s", processor, what);
    return list(name, set);
  }

  // Gives each processor the number of the first that shares a thing with it: where nothing is said,
  // its own if `apart`, else the first's of all.
  void share(uint16_t (&first)[kMostRanked], const char* what, bool apart) const {
    for (uint16_t& one : first) one = kNoGroup;
    const int32_t common = mine_.next(0);
    each([&](int32_t p) {
      if (first[p] != kNoGroup) return;
      ProcessorSet set;
      const bool found = list_of(p, what, &set);
      first[p] = static_cast<uint16_t>(found || apart ? p : common);
      set = set & mine_;
      for (int32_t q = set.next(0); found && q < kMostRanked; q = set.next(q + 1))
        if (first[q] == kNoGroup) first[q] = static_cast<uint16_t>(p);
    });
  }

  // Caches: data and instructions of L1, then L2, L3.  Some processors have an L2 for several cores
  // instead of an L3.
  void read_l3() {
    ProcessorSet set;
    const bool third = list_of(mine_.next(0), "cache/index3/shared_cpu_list", &set);
    share(l3_, third ? "cache/index3/shared_cpu_list" : "cache/index2/shared_cpu_list", false);
    if (third) return;
    share(core_, "topology/thread_siblings_list", true);
    bool shared = false;  // by cores
    each([&](int32_t p) { shared = shared || l3_[p] != core_[p]; });
    if (!shared) each([&](int32_t p) { l3_[p] = 0; });
  }

  // Numbers the groups that share an L3 and a node in node_; returns how many there are.
  int32_t number_groups() {
    ProcessorSet nodes, set;
    each([&](int32_t p) { node_[p] = 0; });
    list("system/node/online", &nodes);
    for (int32_t n = nodes.next(0); n < kMostRanked; n = nodes.next(n + 1)) {
      char name[64];
      snprintf(name, sizeof name, "system/node/node%d/cpulist", n);
      set = {};
      if (list(name, &set)) each([&](int32_t p) { if (set.has(p)) node_[p] = static_cast<uint16_t>(n); });
    }
    int32_t groups = 0;
    each([&](int32_t p) {
      bool fresh = true;
      for (int32_t q = mine_.next(0); fresh && q < p; q = mine_.next(q + 1))
        fresh = node_[q] != node_[p] || l3_[q] != l3_[p];
      groups += fresh;
    });
    return groups > 0 ? groups : 1;
  }

  // Relative speeds; hybrids of x86 may only say which cores are the slow ones: about half as fast.
  int32_t read_capacities() {
    ProcessorSet slow;
    each([&](int32_t p) { capacity_[p] = kFull; });
    const bool hybrid = list("cpu_atom/cpus", &slow);
    int64_t least = kFull, most = 1;
    bool all_say = true;
    each([&](int32_t p) {
      char name[64], text[kMostRead];
      const char* at = text;
      snprintf(name, sizeof name, "system/cpu/cpu%d/cpu_capacity", p);
      all_say = all_say && file(name, text);
      const int64_t number = all_say ? read_number(&at) : -1;
      if (number > 0) capacity_[p] = static_cast<uint16_t>(min(number, kFull));
      else if (hybrid && slow.has(p)) capacity_[p] = kHalf;
      least = min(least, capacity_[p]), most = max(most, capacity_[p]);
    });
    constexpr int64_t kSlowest = 8;
    if (8 * most < 9 * least) return 1;  // less than an eighth apart: not clearly
    return static_cast<int32_t>(min(ceil_div(most, least), kSlowest));
  }

  // Whether some L2 may be several cores', by the first and the last processor, of which a hybrid has one
  // kind each.
  bool may_cluster() const {
    int32_t ends[2] = {mine_.next(0), 0};
    each([&](int32_t p) { ends[1] = p; });
    for (const int32_t p : ends) {
      ProcessorSet l2, core;
      if (!list_of(p, "cache/index2/shared_cpu_list", &l2)) continue;
      if (!list_of(p, "topology/thread_siblings_list", &core)) core.add(p);
      if ((l2 & mine_).count() > (core & mine_).count()) return true;
    }
    return false;
  }

  // Whether a group has several L2s.
  bool differs_within() const {
    bool several = false;
    each([&](int32_t p) {
      for (int32_t q = mine_.next(0); !several && q < p; q = mine_.next(q + 1))
        several = node_[q] == node_[p] && l3_[q] == l3_[p] && l2_[q] != l2_[p];
    });
    return several;
  }

  void rank(ProcessorTopology& all) const {
    uint64_t key[kMostRanked];
    int32_t known = 0;
    each([&](int32_t p) {
      uint64_t value = node_[p];
      const int32_t further[] = {l3_[p], kFull - capacity_[p], l2_[p], core_[p], p};
      for (const int32_t one : further) value = value << 10 | static_cast<uint64_t>(one & (kMostRanked - 1));
      int32_t at = known++;
      for (; at > 0 && key[at - 1] > value; --at) key[at] = key[at - 1];
      key[at] = value;
    });
    for (int32_t i = 0; i < known; ++i) all.ranked[key[i] % kMostRanked] = static_cast<uint16_t>(i + 1);
  }

  const char* devices_;
  const ProcessorSet mine_;
  int32_t count_;
  uint16_t node_[kMostRanked], l3_[kMostRanked], l2_[kMostRanked], core_[kMostRanked], capacity_[kMostRanked];
};

// The processors that this thread may run on.
inline ProcessorSet usable_set() {
  cpu_set_t set;
  ProcessorSet mine;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int32_t i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) mine.add(i);
  return mine;
}

#endif

// That of the processors which this thread may use.
inline ProcessorTopology read_topology(const char* groups) {
#if defined(__linux__)
  const ProcessorSet mine = usable_set();
  if (mine.count() > 0) return TopologyReader("/sys/devices", mine).read(groups);
#else
  (void)groups;
#endif
  return {};
}

// The same, where TRACEA_GROUPS may name other groups than the system does; false if it means nothing.
inline bool find_topology(ProcessorTopology* out, Error& error) {
  const char* groups = getenv("TRACEA_GROUPS");
  if (groups && !*groups) groups = nullptr;
  uint16_t group[kMostRanked];
  if (groups && !read_groups(groups, group))
    return error.fail("TRACEA_GROUPS is '%.40s', but must be lists of processors such as 0-7/8-15.", groups);
  return *out = read_topology(groups), true;
}

// Physical cores among so many usable processors, as far as is known; read again where these change.
inline int32_t usable_cores(int32_t processors) {
#if defined(__linux__)
  static uint64_t known;  // processors, cores
  const uint64_t word = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (word >> 32 == static_cast<uint64_t>(processors)) return static_cast<int32_t>(word);
  const ProcessorSet mine = usable_set();
  const int32_t cores = mine.count() > 0 ? TopologyReader("/sys/devices", mine).cores() : processors;
  const int32_t found = static_cast<int32_t>(max(1, min(cores, processors)));
  __atomic_store_n(&known, static_cast<uint64_t>(processors) << 32 | static_cast<uint64_t>(found),
                   __ATOMIC_RELAXED);
  return found;
#else
  return processors;
#endif
}

// The processor that this thread runs on, or -1; the next moment it may be another one.
inline int32_t processor_here() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

}  // namespace tracea
