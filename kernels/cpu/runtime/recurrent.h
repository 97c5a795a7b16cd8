// The host loop of recurrent cells: step after step for some rows of one direction per task.
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

constexpr double kRecurrentTask = 2e5;  // multiply-adds worth a task of their own

struct RecurrentJob {
  tracea_recurrent_fn step;
  tracea_recurrent_tile tile;  // what every step shares
  const TensorView *p, *r, *rest, *h0, *c0, *h, *c, *y;  // some of those between may be null
  int64_t steps, batch, per_task, tasks;  // rows per task; tasks per direction
  int64_t reverse;                        // bit d: direction d begins at the last step
  float* scratch;                           // for every row of every direction; or null
};

// Panels of some gates that are not shared: each gate's remaining units, where sharing a panel would
// not save one (ops/recurrent.py, Gates).
inline int64_t own_panels(int64_t gates, int64_t hidden) {
  const int64_t left = hidden % TRACEA_PANEL;
  return hidden / TRACEA_PANEL + (ceil_div(gates * left, TRACEA_PANEL) == gates);
}

// All panels of some gates.
inline int64_t gate_panels(int64_t gates, int64_t hidden) {
  const int64_t own = own_panels(gates, hidden);
  return gates * own + ceil_div(gates * max(0, hidden - own * TRACEA_PANEL), TRACEA_PANEL);
}

// Row `row` of direction `d` of a state, or null.
inline float* state_of(const TensorView* box, int64_t d, int64_t row) {
  return box ? box->f32() + d * box->strides[0] + row * box->strides[1] : nullptr;
}

inline void copy_state(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                       int64_t units) {
  const size_t bytes = static_cast<size_t>(units) * sizeof(float);
  for (int64_t i = 0; i < rows; ++i) {
    if (from) memcpy(to + i * to_row, from + i * from_row, bytes);
    else memset(to + i * to_row, 0, bytes);
  }
}

inline void recurrent_task(void* usr, size_t index) {
  const RecurrentJob& job = *static_cast<const RecurrentJob*>(usr);
  const int64_t d = static_cast<int64_t>(index) / job.tasks;
  const int64_t row = static_cast<int64_t>(index) % job.tasks * job.per_task;
  const int64_t *p = job.p->strides, *y = job.y->strides;
  tracea_recurrent_tile tile = job.tile;
  tile.rows = min(job.per_task, job.batch - row);
  tile.r = job.r->f32() + d * job.r->strides[0];
  tile.rest = job.rest ? job.rest->f32() + d * job.rest->strides[0] : nullptr;
  tile.h = state_of(job.h0, d, row), tile.h_row = job.h0 ? job.h0->strides[1] : 0;
  tile.c = state_of(job.c0, d, row), tile.c_row = job.c0 ? job.c0->strides[1] : 0;
  tile.c_next = state_of(job.c, d, row);
  tile.scratch = job.scratch ? job.scratch + (d * job.batch + row) * tile.scratch_row : nullptr;
  for (int64_t i = 0; i < job.steps; ++i) {
    const int64_t t = job.reverse >> d & 1 ? job.steps - 1 - i : i;
    tile.p = job.p->f32() + d * p[0] + t * p[1] + row * p[2];
    tile.y = job.y->f32() + t * y[0] + d * y[1] + row * y[2];
    job.step(&tile);
    tile.h = tile.y, tile.h_row = tile.y_row;
    tile.c = tile.c_next, tile.c_row = tile.c_next_row;
  }
  if (job.h)
    copy_state(tile.h, tile.h_row, state_of(job.h, d, row), job.h->strides[1], tile.rows,
               tile.hidden);
  if (job.c && job.steps == 0)
    copy_state(tile.c, tile.c_row, tile.c_next, tile.c_next_row, tile.rows, tile.hidden);
}

// An LSTM has a cell state c; a GRU with linear_before_reset has a separate bias for that product.
inline bool check_recurrent(Signature& call) {
  const int64_t cell = call.integer(recurrent_call::kCell);
  const bool lstm = cell == recurrent_call::kCellLstm, rests = cell == recurrent_call::kCellGru;
  const bool fits = rests != call.lacks(recurrent_call::kRest) &&
                    lstm != call.lacks(recurrent_call::kC) &&
                    (lstm || call.lacks(recurrent_call::kC0));
  return fits || call.fail("views that are not those of its cell");
}

inline bool is_state(const TensorView* box, int64_t directions, int64_t batch, int64_t hidden) {
  return !box || (box->is(directions, batch, hidden) && (hidden <= 1 || box->strides[2] == 1));
}

inline bool run_recurrent(Run& run, const Call& call, const TensorView* views) {
  const auto given = [&](int i) { return views[i].data ? &views[i] : nullptr; };
  RecurrentJob job = {};
  job.p = &views[0], job.r = &views[1], job.rest = given(2), job.h0 = given(3);
  job.c0 = given(4), job.h = given(5), job.c = given(6), job.y = &views[7];
  const int64_t cell = call.ints[recurrent_call::kCell];
  const bool gru = cell != recurrent_call::kCellLstm;
  const bool before = cell == recurrent_call::kCellGruResetBefore;
  const int64_t *p = job.p->dims, *r = job.r->dims, gates = gru ? 3 : 4;
  const int64_t directions = r[0], hidden = r[2], together = before ? 2 : gates;
  const int64_t padded = ceil_div(hidden, TRACEA_PANEL) * TRACEA_PANEL;
  job.steps = p[1], job.batch = p[2];
  const bool fits =
      hidden > 0 && hidden < INT32_MAX &&
      r[1] == gate_panels(together, hidden) + gate_panels(gates - together, hidden) &&
      r[3] == TRACEA_PANEL && job.r->strides[3] == 1 && job.r->strides[2] == TRACEA_PANEL &&
      job.r->strides[1] == hidden * TRACEA_PANEL &&
      job.p->is(directions, job.steps, job.batch, r[1] * TRACEA_PANEL) && job.p->strides[3] == 1 &&
      job.y->is(job.steps, directions, job.batch, hidden) &&
      (hidden == 1 || job.y->strides[3] == 1) &&
      (!job.rest || (job.rest->is(directions, padded) && job.rest->strides[1] == 1));
  const TensorView* states[] = {job.h0, job.c0, job.h, job.c};
  bool ok = fits;
  for (const TensorView* state : states) ok = ok && is_state(state, directions, job.batch, hidden);
  if (!ok) return run.error.fail("The views of a recurrent cell do not fit together.");
  if (directions == 0 || job.batch == 0) return true;
  const tracea_isa_table& isa = *run.host.isa;
  job.step = !gru ? isa.lstm : !before ? isa.gru : isa.gru_before;
  job.reverse = call.ints[recurrent_call::kReverse];
  job.tile.hidden = hidden, job.tile.blocks = own_panels(together, hidden);
  job.tile.p_row = job.p->strides[2], job.tile.y_row = job.y->strides[2];
  job.tile.c_next_row = job.c ? job.c->strides[1] : 0;
  const double work = static_cast<double>(job.steps) * static_cast<double>(hidden * hidden * gates) *
                      static_cast<double>(job.batch);
  const int64_t worth = max(1, static_cast<int64_t>(work / kRecurrentTask));
  // Rows of one task read the matrix once, so they are split only as far as there are threads.
  const int64_t threads = run.threads();
  const int64_t wanted = min(ceil_div(threads, directions), worth);
  job.per_task = ceil_div(job.batch, wanted);
  job.tasks = ceil_div(job.batch, job.per_task);
  Scratch scratch(run);
  if (before) {
    job.tile.scratch_row = 2 * padded;
    const int64_t bytes = directions * job.batch * job.tile.scratch_row * 4;
    if (!(job.scratch = reinterpret_cast<float*>(scratch.take(bytes)))) return false;
  }
  return run.parallel(directions * job.tasks, recurrent_task, &job);
}

}  // namespace tracea
