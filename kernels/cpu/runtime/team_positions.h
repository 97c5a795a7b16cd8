// Which position each thread of a team has in the order of tasks.
//
// Neighbouring tasks read the same weights and each other's lines, so they go to neighbouring positions.
// Where processors share all caches but their own, positions are given in the order in which threads come.
// Where they do not, a thread takes the free position that is nearest to its processor's rank: threads of
// an L3, a memory node or an L2 get neighbouring tasks, and what they read comes once from
// farther away.  Nobody is bound to a processor: threads belong to the session, the process may
// be bound by its user, and a thread that has moved gets another position in the next run.
#pragma once
#include "runtime/processor_topology.h"

namespace tracea {

constexpr int32_t kMaxTeam = 64;

class TeamPositions {
 public:
  // Of `members` that are expected; `topology` is null where all processors are equally near.
  void init(int32_t members, const ProcessorTopology* topology) {
    topology_ = topology && topology->differs() ? topology : nullptr;
    expected_ = static_cast<uint32_t>(members);
  }

  bool grouped() const { return topology_; }

  // The position of whoever comes as number `arrival`, on `processor`; later ones than are expected have
  // theirs behind.
  uint32_t take(uint32_t arrival, int32_t processor) {
    if (!topology_ || arrival >= expected_) return arrival;
    const uint32_t wanted = position_of(processor, arrival);
    for (uint64_t was = __atomic_load_n(&taken_, __ATOMIC_RELAXED);;) {
      const uint32_t free = nearest_free(was, wanted);
      if (__atomic_compare_exchange_n(&taken_, &was, was | uint64_t{1} << free, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_RELAXED))
        return free;
    }
  }

  // The share that a position begins with, of so many: those of neighbours are neighbours.
  uint32_t share_of(uint32_t position, uint32_t shares) const {
    if (!topology_ || shares >= expected_ || position >= expected_) return position % shares;
    return static_cast<uint32_t>(uint64_t{position} * shares / expected_);
  }

  // Whether a position is the first that begins with its share.
  bool begins(uint32_t position, uint32_t shares) const {
    if (!topology_ || shares >= expected_ || position >= expected_) return position < shares;
    return position == 0 || share_of(position - 1, shares) != share_of(position, shares);
  }

  // The i-th share that a position looks at, of so many: the next ones, or the nearest on both sides.
  uint32_t share_after(uint32_t position, uint32_t i, uint32_t shares) const {
    if (!topology_) return (position + i) % shares;
    const uint32_t own = share_of(position, shares);
    return (i % 2 ? own + (i + 1) / 2 : own + shares - i / 2) % shares;
  }

 private:
  uint32_t position_of(int32_t processor, uint32_t arrival) const {
    const int64_t rank = topology_->rank(processor);
    if (rank < 0) return arrival;
    return static_cast<uint32_t>(min(rank * expected_ / topology_->count, int64_t{expected_} - 1));
  }

  uint32_t nearest_free(uint64_t taken, uint32_t wanted) const {
    for (uint32_t far = 0; far < expected_; ++far) {
      if (wanted + far < expected_ && !(taken >> (wanted + far) & 1)) return wanted + far;
      if (wanted >= far && !(taken >> (wanted - far) & 1)) return wanted - far;
    }
    return wanted;  // never: fewer have come than there are positions
  }

  const ProcessorTopology* topology_;
  uint64_t taken_;  // one bit each
  uint32_t expected_;
};

}  // namespace tracea
