// Where everything lies, found once: sizes follow from the program's symbols, and addresses but for
// where the buffers begin.  The first run keeps what it found; every run with its symbols uses it.
#pragma once
#include "runtime/run.h"

namespace tracea {

struct Places {
  const int64_t* symbols;            // that all this is for
  int64_t bytes;                     // of all temps
  const int64_t *counts, *offsets;   // of each temp
  const int32_t* first;              // of each call: its first view in `boxes`, or -1 in a loop
  const Box* boxes;                  // `data` counts bytes from where the buffer begins
  Pool pool;
};

inline void release(Places* places) {
  if (!places) return;
  places->pool.release();
  free(places);
}

inline bool in_loop(const Program& program, int32_t call) {
  for (int32_t i = 0; i < program.loop_count; ++i)
    if (program.loops[i].first <= call && call <= program.loops[i].last) return true;
  return false;
}

// The places of a run whose buffers are bound; null where there is no memory for them, or a view
// does not fit: the run that uses it says so.
inline Places* find_places(Run& run, const Program& program, const int64_t* symbols,
                           const Memory* buffers, const int64_t* offsets, int64_t bytes) {
  Places* made = static_cast<Places*>(calloc(1, sizeof(Places)));
  if (!made) return nullptr;
  int32_t views = 0;
  for (int32_t i = 0; i < program.call_count; ++i) views += program.calls[i].view_count;
  int64_t* numbers = made->pool.array<int64_t>(program.symbol_count + 2 * program.temp_count);
  int32_t* first = made->pool.array<int32_t>(program.call_count);
  Box* boxes = made->pool.array<Box>(views);
  Run probe(run.host, run.context);
  bool ok = numbers && first && boxes;
  for (int32_t i = 0, at = 0; ok && i < program.call_count; ++i) {
    first[i] = in_loop(program, i) ? -1 : at;
    const Call& call = program.calls[i];
    for (int32_t k = 0; ok && first[i] >= 0 && k < call.view_count; ++k, ++at) {
      const View& view = call.views[k];
      ok = place(probe, view, symbols, buffers, i, k, &boxes[at]);
      if (ok && view.kind != kNone)
        boxes[at].data = reinterpret_cast<char*>(boxes[at].data - buffers[view.buffer].data);
    }
  }
  if (!ok) return release(made), nullptr;
  int64_t *counts = numbers + program.symbol_count, *from = counts + program.temp_count;
  const Memory* temps = buffers + program.input_count + program.output_count;
  for (int32_t i = 0; i < program.symbol_count; ++i) numbers[i] = symbols[i];
  for (int32_t i = 0; i < program.temp_count; ++i)
    counts[i] = temps[i].count, from[i] = offsets[i];
  made->symbols = numbers, made->bytes = bytes, made->counts = counts, made->offsets = from;
  made->first = first, made->boxes = boxes;
  return made;
}

// Keeps the places of a node's first run, for as long as the node lives.
inline void keep(Places** kept, Places* made) {
  Places* none = nullptr;
  if (!__atomic_compare_exchange_n(kept, &none, made, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
    release(made);
}

inline bool keeps(Places* const* kept) { return __atomic_load_n(kept, __ATOMIC_RELAXED); }

// What a node keeps, if it is for these symbols.
inline const Places* places_for(Places* const* kept, const Program& program,
                                const int64_t* symbols) {
  const Places* places = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
  for (int32_t i = 0; places && i < program.symbol_count; ++i)
    if (places->symbols[i] != symbols[i]) return nullptr;
  return places;
}

// View `number` of a call, whether its place is known or not.
inline bool find_view(Run& run, const Call& call, int32_t index, int32_t number,
                      const int64_t* symbols, const Memory* buffers, Box* box) {
  const View& view = call.views[number];
  const int32_t first = run.places ? run.places->first[index] : -1;
  if (first < 0) return place(run, view, symbols, buffers, index, number, box);
  const Box& known = run.places->boxes[first + number];
  for (int32_t i = 0; i < view.rank; ++i)
    box->dims[i] = known.dims[i], box->strides[i] = known.strides[i];
  box->data = view.kind == kNone ? nullptr
                                 : buffers[view.buffer].data + reinterpret_cast<intptr_t>(known.data);
  return true;
}

}  // namespace tracea
