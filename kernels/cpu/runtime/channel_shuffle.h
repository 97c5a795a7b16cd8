// Channels of blocked values dealt out anew: put together, shuffled in groups, a range of them kept.
//
// Channel c of the result is channel (first + c) of the parts' channels put one after another and
// shuffled: of `groups` piles, one from each in turn.
#pragma once
#include "runtime/blocked.h"
#include "runtime/partition.h"
#include "runtime/rows.h"

namespace tracea {


struct ChannelShuffleJob {
  tracea_channel_shuffle_fn channel_shuffle;
  Canvas y;
  const TensorView* x;
  const int64_t* channels;  // of each part
  int64_t groups, first, count, total;
  LinePartition partition;
};

// The part that holds a channel of the result, and the channel there.
struct Card {
  int64_t part, channel;
};
inline Card card_at(const ChannelShuffleJob& job, int64_t index) {
  const int64_t at = job.first + index;
  int64_t channel = at % job.groups * (job.total / job.groups) + at / job.groups, part = 0;
  while (channel >= job.channels[part]) channel -= job.channels[part++];
  return {part, channel};
}

inline void channel_shuffle_task(void* usr, size_t index) {
  const ChannelShuffleJob& job = *static_cast<const ChannelShuffleJob*>(usr);
  const auto [n, block, first, last] = job.partition.at(static_cast<int64_t>(index));
  tracea_channel_shuffle_tile tile = {};
  tile.pixels = job.y.width;
  int64_t parts[kLanes];
  const float* start[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {  // lanes past the last channel hold anything
    const Card card = card_at(job, min(block * kLanes + lane, job.count - 1));
    const TensorView& x = job.x[card.part];
    parts[lane] = card.part;
    start[lane] = x.f32() + n * x.strides[0] + card.channel / kLanes * x.strides[1];
    tile.lane[lane] = card.channel % kLanes;
  }
  for (int64_t row = first; row < last; ++row) {
    for (int64_t lane = 0; lane < kLanes; ++lane)
      tile.from[lane] = start[lane] + row * job.x[parts[lane]].strides[2];
    tile.y = job.y.row(n, block, row);
    job.channel_shuffle(&tile);
    job.y.clear(n, block, row, 1, 0, tile.pixels);
  }
}

inline bool check_channel_shuffle(Signature& call) {
  const int32_t parts = call.view_count() - 1;
  return (parts >= 1 && parts <= kMaxShuffled) || call.fail("no parts, or too many");
}

inline bool run_channel_shuffle(Run& run, const Call& call, const TensorView* views) {
  const int32_t parts = call.view_count - 1;
  const TensorView& y = views[parts];
  ChannelShuffleJob job = {};
  job.channel_shuffle = run.host.isa->channel_shuffle;
  job.x = views, job.channels = call.ints + channel_shuffle_call::kPartChannels;
  job.groups = call.ints[channel_shuffle_call::kGroups], job.first = call.ints[channel_shuffle_call::kFirst];
  job.count = call.ints[channel_shuffle_call::kChannels];
  bool ok = open_canvas(y, call.ints + channel_shuffle_call::kHalo, &job.y);
  for (int32_t v = 0; ok && v < parts; ++v) {
    const TensorView& x = views[v];
    job.total += job.channels[v];
    ok = blocked(x) && x.is(y.dims[0], ceil_div(job.channels[v], kLanes)) &&
         x.dims[2] == job.y.height && x.dims[3] == job.y.width;
  }
  if (!ok || job.total % job.groups || job.first + job.count > job.total ||
      y.dims[1] != ceil_div(job.count, kLanes))
    return misfit(run, "channel_shuffle");
  if (job.y.bare()) return true;
  const int64_t width = job.y.width, blocks = y.dims[1];
  job.partition = LinePartition(run, y.dims[0], blocks, job.y.height, width, kGrain / kLanes / width);
  const int64_t together = kGrain / kLanes / (job.partition.rows * width);
  return run.parallel_by(together, y.dims[0] * blocks * job.partition.each, channel_shuffle_task, &job);
}

}  // namespace tracea
