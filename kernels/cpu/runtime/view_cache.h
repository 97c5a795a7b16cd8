// The views of a program's calls, resolved once: sizes follow from the program's symbols, addresses
// from them and from where the buffers begin.  A node's first run fills the cache; every run with the
// same symbols uses it.
#pragma once
#include "runtime/run.h"

namespace tracea {

struct ViewCache {
  const int64_t* symbols;            // the entries are for
  int64_t bytes;                     // of all temps
  const int64_t *counts, *offsets;   // of each temp
  const int32_t* first;              // of each call: its first view in `views`, or -1 in a loop
  const TensorView* views;           // `data` counts bytes from where the buffer begins
  Pool pool;
};

inline void release(ViewCache* cache) {
  if (!cache) return;
  cache->pool.release();
  free(cache);
}

inline bool in_loop(const Program& program, int32_t call) {
  for (int32_t i = 0; i < program.loop_count; ++i)
    if (program.loops[i].first <= call && call <= program.loops[i].last) return true;
  return false;
}

// Resolves all views of a run whose buffers are bound; null without memory for them, or if a view
// does not fit: the run that uses the view reports it.
inline ViewCache* fill_view_cache(Run& run, const Program& program, const int64_t* symbols,
                           const Memory* buffers, const int64_t* offsets, int64_t bytes) {
  ViewCache* made = static_cast<ViewCache*>(calloc(1, sizeof(ViewCache)));
  if (!made) return nullptr;
  int32_t count = 0;
  for (int32_t i = 0; i < program.call_count; ++i) count += program.calls[i].view_count;
  int64_t* numbers = made->pool.array<int64_t>(program.symbol_count + 2 * program.temp_count);
  int32_t* first = made->pool.array<int32_t>(program.call_count);
  TensorView* views = made->pool.array<TensorView>(count);
  Run probe(run.host, run.context);
  bool ok = numbers && first && views;
  for (int32_t i = 0, at = 0; ok && i < program.call_count; ++i) {
    first[i] = in_loop(program, i) ? -1 : at;
    const Call& call = program.calls[i];
    for (int32_t k = 0; ok && first[i] >= 0 && k < call.view_count; ++k, ++at) {
      const View& view = call.views[k];
      ok = place(probe, view, symbols, buffers, i, k, &views[at]);
      if (ok && view.kind != kNone)
        views[at].data = reinterpret_cast<char*>(views[at].data - buffers[view.buffer].data);
    }
  }
  if (!ok) return release(made), nullptr;
  int64_t *counts = numbers + program.symbol_count, *from = counts + program.temp_count;
  const Memory* temps = buffers + program.input_count + program.output_count;
  for (int32_t i = 0; i < program.symbol_count; ++i) numbers[i] = symbols[i];
  for (int32_t i = 0; i < program.temp_count; ++i)
    counts[i] = temps[i].count, from[i] = offsets[i];
  made->symbols = numbers, made->bytes = bytes, made->counts = counts, made->offsets = from;
  made->first = first, made->views = views;
  return made;
}

// Stores the cache of a node's first run, for the node's lifetime.
inline void keep(ViewCache** kept, ViewCache* made) {
  ViewCache* none = nullptr;
  if (!__atomic_compare_exchange_n(kept, &none, made, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
    release(made);
}

inline bool keeps(ViewCache* const* kept) { return __atomic_load_n(kept, __ATOMIC_RELAXED); }

// A node's cache if it is for these symbols, else null.
inline const ViewCache* cached_views(ViewCache* const* kept, const Program& program,
                                const int64_t* symbols) {
  const ViewCache* cache = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
  for (int32_t i = 0; cache && i < program.symbol_count; ++i)
    if (cache->symbols[i] != symbols[i]) return nullptr;
  return cache;
}

// View `number` of a call, from the cache if it is there.
inline bool find_view(Run& run, const Call& call, int32_t index, int32_t number,
                      const int64_t* symbols, const Memory* buffers, TensorView* box) {
  const View& view = call.views[number];
  const int32_t first = run.view_cache ? run.view_cache->first[index] : -1;
  if (first < 0) return place(run, view, symbols, buffers, index, number, box);
  const TensorView& known = run.view_cache->views[first + number];
  for (int32_t i = 0; i < view.rank; ++i)
    box->dims[i] = known.dims[i], box->strides[i] = known.strides[i];
  box->data = view.kind == kNone ? nullptr
                                 : buffers[view.buffer].data + reinterpret_cast<intptr_t>(known.data);
  return true;
}

}  // namespace tracea
