// The GEMM driver: checks the views, picks the tasks for the weight's layout and divides the work.
#pragma once
#include "runtime_check.h"
#include "runtime_gemm_rows.h"
#include "runtime_gemm_tile.h"
#include "runtime_pack.h"
#include "runtime_run.h"

namespace tracea {

inline Driver choose_driver(const Call& call, int64_t m) {
  Driver driver = {INT32_MAX, 0, 128, 0, m > 4};  // few rows stream at full speed unaided
  for (int32_t i = 0; i < call.driver_count; ++i) {
    driver = call.drivers[i];
    if (m <= driver.max_rows) break;
  }
  return driver;
}

inline void divide_work(GemmJob& job, const Driver& driver) {
  const int64_t widest = job.isa->gemm_nv;
  const int64_t width = driver.tile_panels ? least(driver.tile_panels, widest) : widest;
  job.columns = ceil_div(ceil_div(job.n, TRACEA_PANEL), width);
  const int64_t together = job.m >= 64 ? 1 : least(most(job.columns / 4, 1), job.m >= 32 ? 2 : 4);
  job.per_group = driver.panel_group ? driver.panel_group : together;
  job.groups = ceil_div(job.columns, job.per_group);
  job.chunks = ceil_div(job.m, driver.row_chunk);
  const bool packed = job.w_row == TRACEA_PANEL && job.w_panel == job.k * TRACEA_PANEL;
  job.prefetch = driver.prefetch && packed;
  constexpr double kSmall = 1e5;  // multiply-adds that are not worth waking a thread for
  const double work = static_cast<double>(job.m) * static_cast<double>(job.n);
  if (work * static_cast<double>(job.k) < kSmall) job.per_group = job.columns, job.groups = 1;
}

inline bool check_gemm(Signature& call) {
  const tracea_chain_type* chain = call.chain();
  const int32_t extra = chain ? chain->operands - 1 : 0, results = chain ? chain->results : 1;
  if (chain &&
      (chain->operands < 1 || chain->kind[0] != TRACEA_FULL || chain->type[0] != ORT_F32))
    return call.fail("a chain that does not begin with the product");
  if (!call.counts(1, 0, 3 + extra + results) || !call.parameter(0, 0, 2)) return false;
  bool ok = call.reads(0, 2) && call.reads(1, call.integer(0) == 0 ? 3 : 2) && call.may_read(2, 1);
  for (int32_t i = 0; i < extra; ++i) ok = ok && call.reads(3 + i, 2, chain->type[i + 1]);
  for (int32_t i = 0; i < results; ++i)
    ok = ok && call.writes(3 + extra + i, 2, chain ? chain->result[i] : ORT_F32);
  return ok;
}

// Whether an [M,N] operand lies as its kind says; then the chain stays inside the view.
inline bool lies_as(const Box& box, uint8_t kind, int64_t m, int64_t n) {
  const bool by_row = kind == TRACEA_FULL || kind == TRACEA_COL;
  const bool by_column = kind == TRACEA_FULL || kind == TRACEA_ROW;
  return box.is(m, n) && (by_row || m == 1 || box.strides[0] == 0) &&
         (n == 1 || box.strides[1] == by_column);
}

inline bool gemm_shapes(Run& run, const Call& call, const Box* views, GemmJob& job) {
  const Box &x = views[0], &w = views[1], &bias = views[2];
  const int64_t layout = call.ints[0];
  job.m = x.dims[0], job.k = x.dims[1];
  job.n = job.results[0].dims[1];
  bool ok = (job.k <= 1 || x.strides[1] == 1) && (!job.bias || bias.is(job.n)) &&
            (!job.bias || job.n <= 1 || bias.strides[0] == 1);
  if (layout == 0)
    ok = ok && w.is(ceil_div(job.n, TRACEA_PANEL), job.k) && w.dims[2] == TRACEA_PANEL &&
         w.strides[2] == 1;
  else ok = ok && (layout == 1 ? w.is(job.k, job.n) : w.is(job.n, job.k));
  const int32_t results = job.type ? job.type->results : 1;
  for (int32_t i = 0; i < results; ++i)
    ok = ok && lies_as(job.results[i], TRACEA_FULL, job.m, job.n);
  for (int32_t i = 1; ok && job.type && i < job.type->operands; ++i)
    ok = lies_as(job.extra[i - 1], job.type->kind[i], job.m, job.n);
  return ok || run.fault.fail("The views of a gemm do not fit together (M %lld, N %lld, K %lld).",
                              static_cast<long long>(job.m), static_cast<long long>(job.n),
                              static_cast<long long>(job.k));
}

// Weights that lie badly are packed for this call; one row of x after another otherwise.
inline bool run_packed(Run& run, GemmJob& job, Driver driver, int64_t row, int64_t column) {
  Scratch scratch(run);
  job.w = pack(run, scratch, {job.w, row, column, job.k, job.n, nullptr});
  if (!job.w) return false;
  job.w_panel = job.k * TRACEA_PANEL, job.w_row = TRACEA_PANEL;
  divide_work(job, driver);
  return run.parallel(job.groups * job.chunks, gemm_task, &job);
}

inline bool run_gemm(Run& run, const Call& call, const Box* views) {
  GemmJob job = {};
  job.isa = run.host.isa;
  job.type = call.chain_type();
  job.chain = job.type ? job.isa->chain[call.chain] : nullptr;
  job.x = &views[0];
  job.bias = views[2].data ? &views[2] : nullptr;
  job.extra = &views[3];
  job.results = job.extra + (job.type ? job.type->operands - 1 : 0);
  if (!gemm_shapes(run, call, views, job)) return false;
  if (job.m == 0 || job.n == 0) return true;
  const Box& w = views[1];
  const int64_t layout = call.ints[0];
  const Driver driver = choose_driver(call, job.m);
  job.w = w.f32();
  if (layout == 0) {
    job.w_panel = w.strides[0], job.w_row = w.strides[1];
  } else if (layout == 1 && (job.n == 1 || w.strides[1] == 1)) {
    job.w_panel = TRACEA_PANEL, job.w_row = w.strides[0], job.w_exact = 1;
  } else {
    const int64_t row = w.strides[layout == 1 ? 0 : 1], column = w.strides[layout == 1 ? 1 : 0];
    const bool in_place = (row == 1 || job.k <= 1) && job.m <= job.n;
    return in_place ? run_by_rows(run, job, column) : run_packed(run, job, driver, row, column);
  }
  divide_work(job, driver);
  return run.parallel(job.groups * job.chunks, gemm_task, &job);
}

}  // namespace tracea
