// Matrix products, attention and norms of the C interface, as plans of one call.
#pragma once
#include "runtime/c_tensors.h"

namespace tracea {

// Weights that were packed once: of a product, or of a convolution (c_conv2d.h).
struct PackedMatrix {
  int64_t k, n;
  float *panels, *bias;  // bias may be null
};

inline bool read_product(Failure& failure, const TraceaTensorView* a, const TraceaTensorView* c,
                         CTensor* x, CTensor* y) {
  return read_tensor(failure, "a", a, 2, kMaxRank - 1, 0, x) &&
         read_tensor(failure, "c", c, 2, kMaxRank - 1, kResult | kUnitColumns, y);
}

inline void plan_gemm(CRun& run, PlannedView x, PlannedView w, PlannedView bias, PlannedView y,
                      int64_t layout, int64_t chain) {
  const PlannedView views[] = {x, w, bias, y};
  const int64_t ints[] = {layout, 1};
  run.plan.call(kGemm, ints, 2, nullptr, 0, views, 4, chain);
}

inline bool c_gemm(Failure& failure, const TraceaTensorView* a, const TraceaTensorView* b,
                   const TraceaTensorView* bias, const TraceaTensorView* c,
                   const TraceaGemmParams* given) {
  TraceaGemmParams params = TRACEA_GEMM_PARAMS_INIT;
  CTensor x, w, row, y;
  int64_t chain;
  if (!read_params(failure, given, &params) || !read_product(failure, a, c, &x, &y) ||
      !read_tensor(failure, "b", b, 2, kMaxRank - 1, 0, &w) ||
      !check_product(failure, *a, w.dim(w.view.rank - 2), w.dim(w.view.rank - 1), *c) ||
      !read_vector(failure, "bias", bias, y.dim(y.view.rank - 1), &row) ||
      !find_activation(failure, params.activation, &chain) || !separate(failure, y, x, "a") ||
      !separate(failure, y, w, "b") || !separate(failure, y, row, "bias"))
    return false;
  const int32_t outer = x.view.rank - 2, own = w.view.rank - 2;
  if (own > outer) return refuse_shape(failure, "b", "has more axes than a");
  // missing axes, and those of size 1, are repeated
  PlannedView wide = w.view;
  wide.rank = x.view.rank;
  bool shared = true;
  for (int32_t i = 0; i < wide.rank; ++i) {
    const int32_t from = i - (outer - own);
    wide.dims[i] = i < outer ? x.dim(i) : w.dim(from);
    wide.strides[i] = from < 0 ? 0 : w.view.strides[from];
    if (i >= outer) continue;
    if (from >= 0 && w.dim(from) != x.dim(i) && w.dim(from) != 1)
      return refuse_shape(failure, "b", "has other outer axes than a");
    if (from >= 0 && w.dim(from) == 1) wide.strides[i] = 0;
    shared = shared && (wide.strides[i] == 0 || wide.dims[i] == 1);
  }
  w.view = wide;
  CRun run;
  PlannedView vx = run.add(x), vw = run.add(w), vb = run.add(row), vy = run.result(y);
  if (outer && shared && even(vx, outer) && even(vy, outer)) {
    vx = joined(vx, outer), vy = joined(vy, outer);
    vw.rank = 2;
    for (int32_t i = 0; i < 2; ++i) vw.dims[i] = wide.dims[outer + i], vw.strides[i] = wide.strides[outer + i];
  }
  plan_gemm(run, vx, vw, vb, vy, gemm_call::kLayoutKn, chain);
  return run.run("gemm", failure);
}

inline bool c_gemm_packed(Failure& failure, const PackedMatrix& packed, int32_t activation,
                          const TraceaTensorView* a, const TraceaTensorView* c) {
  CTensor x, y;
  int64_t chain;
  if (!read_product(failure, a, c, &x, &y) ||
      !check_product(failure, *a, packed.k, packed.n, *c) ||
      !find_activation(failure, activation, &chain) || !separate(failure, y, x, "a"))
    return false;
  const int32_t outer = x.view.rank - 2;
  if (!even(x.view, outer) || !even(y.view, outer))
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "Rows of a or c lie at uneven steps: copy them first.");
  CRun run;
  const int64_t panels[] = {ceil_div(packed.n, TRACEA_PANEL), packed.k, TRACEA_PANEL};
  const PlannedView vx = joined(run.add(x), outer), vw = run.add(packed.panels, 3, panels);
  const PlannedView vb = packed.bias ? run.add(packed.bias, 1, &packed.n) : kNoView;
  const PlannedView vy = joined(run.result(y), outer);
  plan_gemm(run, vx, vw, vb, vy, gemm_call::kLayoutPanels, chain);
  return run.run("gemm", failure);
}

// Packs b [K, N] and the bias into memory of its own.
inline bool pack_matrix(Failure& failure, const tracea_isa_table& isa, const TraceaTensorView* b,
                        const TraceaTensorView* bias, PackedMatrix* out) {
  CTensor w, row;
  if (!read_tensor(failure, "b", b, 2, 2, 0, &w) ||
      !read_vector(failure, "bias", bias, w.dim(1), &row))
    return false;
  if (!isa.gemm_pack)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "This library holds no kernel for gemm.");
  *out = {w.dim(0), w.dim(1), nullptr, nullptr};
  const int64_t panels = ceil_div(out->n, TRACEA_PANEL);
  const int64_t numbers = panels * TRACEA_PANEL * (out->k + 1);
  void* memory = allocate_lines(static_cast<size_t>(max(numbers, 1)) * sizeof(float));
  if (!memory)
    return failure.refuse(TRACEA_CPU_ERROR, "There is no memory for packed weights.");
  out->panels = static_cast<float*>(memory);
  const float* from = reinterpret_cast<const float*>(w.low) + w.view.offset;
  const tracea_gemm_pack_tile tile = {out->k, out->n, from, w.view.strides[0], w.view.strides[1],
                                      out->panels, out->k * TRACEA_PANEL};
  if (!w.empty()) isa.gemm_pack(&tile);
  if (row.given()) {
    out->bias = out->panels + panels * TRACEA_PANEL * out->k;
    memcpy(out->bias, row.low + row.view.offset * 4, static_cast<size_t>(out->n) * sizeof(float));
  }
  return true;
}

// ---- attention ---------------------------------------------------------------------------------

inline bool attention_fits(Failure& failure, const CTensor& q, const CTensor& k, const CTensor& v,
                           const CTensor& y) {
  const int64_t batch = q.dim(0), heads = q.dim(1), shared = k.dim(1), keys = k.dim(2);
  if (k.dim(0) != batch || v.dim(0) != batch || y.dim(0) != batch || v.dim(1) != shared ||
      y.dim(1) != heads || v.dim(2) != keys || k.dim(3) != q.dim(3) || y.dim(2) != q.dim(2) ||
      y.dim(3) != v.dim(3) || shared < 1 || heads % shared)
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "The shapes of q, k, v and y do not fit: q [B, H, S, D], k [B, Hkv, T, D], "
                          "v [B, Hkv, T, Dv], y [B, H, S, Dv].");
  constexpr int64_t kMostHead = 256;
  if (q.dim(3) < 1 || q.dim(3) > kMostHead || v.dim(3) < 1 || v.dim(3) > kMostHead)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "Heads have %lld and %lld numbers, but kernels take 1 to 256.",
                          static_cast<long long>(q.dim(3)), static_cast<long long>(v.dim(3)));
  const bool columns = k.view.strides[3] == 1, rows = k.view.strides[2] == 1 || keys <= 1;
  if (!columns && !rows)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "k must have unit stride along heads or along keys: copy it first.");
  if (keys > 1 && (v.view.strides[2] == 0 || (columns && k.view.strides[2] == 0)))
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "Keys and values must not be repeated.");
  return true;
}

// The mask seen as [B, H, S, T].
inline bool widen_mask(Failure& failure, const CTensor& q, int64_t keys, CTensor& mask) {
  const int64_t full[] = {q.dim(0), q.dim(1), q.dim(2), keys};
  const int32_t missing = 4 - mask.view.rank;
  PlannedView wide = mask.view;
  wide.rank = 4;
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t from = i - missing;
    const int64_t own = from < 0 ? 1 : mask.dim(from);
    if (own != full[i] && own != 1)
      return refuse_shape(failure, "mask", "does not broadcast to [B, H, S, T]");
    wide.dims[i] = full[i];
    wide.strides[i] = own == 1 ? 0 : mask.view.strides[from];
  }
  if (keys > 1 && wide.strides[3] != 0 && wide.strides[3] != 1)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "mask has another stride than 0 or 1 along keys: copy it first.");
  mask.view = wide;
  return true;
}

inline bool c_attention(Failure& failure, const TraceaTensorView* q, const TraceaTensorView* k,
                        const TraceaTensorView* v, const TraceaTensorView* mask,
                        const TraceaTensorView* y, const TraceaAttentionParams* given) {
  using namespace attention_call;
  TraceaAttentionParams params = TRACEA_ATTENTION_PARAMS_INIT;
  CTensor tq, tk, tv, tm, ty;
  if (!read_params(failure, given, &params) ||
      !read_tensor(failure, "q", q, 4, 4, kUnitColumns, &tq) ||
      !read_tensor(failure, "k", k, 4, 4, 0, &tk) ||
      !read_tensor(failure, "v", v, 4, 4, kUnitColumns, &tv) ||
      !read_optional(failure, "mask", mask, 0, 4, kAlsoBool, &tm) ||
      !read_tensor(failure, "y", y, 4, 4, kResult | kUnitColumns, &ty) ||
      !attention_fits(failure, tq, tk, tv, ty) ||
      (tm.given() && !widen_mask(failure, tq, tk.dim(2), tm)) || !separate(failure, ty, tq, "q") ||
      !separate(failure, ty, tk, "k") || !separate(failure, ty, tv, "v") ||
      !separate(failure, ty, tm, "mask"))
    return false;
  if (params.causal < TRACEA_NOT_CAUSAL || params.causal > TRACEA_CAUSAL_BOTTOM_RIGHT ||
      !(params.softcap >= 0) || !(params.scale - params.scale == 0))
    return failure.refuse(TRACEA_INVALID_PARAMS, "causal is %d, softcap %g and scale %g.",
                          params.causal, static_cast<double>(params.softcap),
                          static_cast<double>(params.scale));
  CRun run;
  const PlannedView vq = run.add(tq), vk = run.add(tk), vv = run.add(tv), vm = run.add(tm);
  const PlannedView views[] = {vq, vk, vv, vm, kNoView, run.result(ty)};
  int64_t ints[kInts] = {};
  ints[kMaskKind] = !tm.given() ? kMaskKindNone : tm.type == ORT_BOOL ? kMaskKindBool : kMaskKindAdd;
  ints[kZeroRows] = tm.given() || params.causal ? kZeroRowsInfinite : kZeroRowsNone;
  ints[kOrder] = params.causal;
  ints[kWindowLeft] = -1;
  const double scale = params.scale != 0 ? static_cast<double>(params.scale)
                                         : 1.0 / __builtin_sqrt(static_cast<double>(tq.dim(3)));
  const double floats[] = {scale, -__builtin_inf(), static_cast<double>(params.softcap), 0.0};
  run.plan.call(kAttention, ints, kInts, floats, 4, views, 6);
  return run.run("attention", failure);
}

// ---- norm --------------------------------------------------------------------------------------

inline bool c_norm(Failure& failure, const TraceaTensorView* x, const TraceaTensorView* gamma,
                   const TraceaTensorView* beta, const TraceaTensorView* y,
                   const TraceaNormParams* given) {
  TraceaNormParams params = TRACEA_NORM_PARAMS_INIT;
  CTensor tx, tg, tb, ty;
  if (!read_params(failure, given, &params) ||
      !read_tensor(failure, "x", x, 1, kMaxRank, kUnitColumns, &tx) ||
      !read_tensor(failure, "y", y, 1, kMaxRank, kResult | kUnitColumns, &ty))
    return false;
  bool same = tx.view.rank == ty.view.rank;
  for (int32_t i = 0; same && i < tx.view.rank; ++i) same = tx.dim(i) == ty.dim(i);
  if (!same) return refuse_shape(failure, "y", "has another shape than x");
  const int64_t columns = tx.dim(tx.view.rank - 1);
  if (!read_vector(failure, "gamma", gamma, columns, &tg) ||
      !read_vector(failure, "beta", beta, columns, &tb) || !separate(failure, ty, tx, "x") ||
      !separate(failure, ty, tg, "gamma") || !separate(failure, ty, tb, "beta"))
    return false;
  if (params.kind < TRACEA_LAYER_NORM || params.kind > TRACEA_RMS_NORM || !(params.epsilon >= 0))
    return failure.refuse(TRACEA_INVALID_PARAMS, "kind is %d and epsilon %g.", params.kind,
                          static_cast<double>(params.epsilon));
  CTensor* const both[] = {&tx, &ty};
  for (CTensor* t : both) {
    PlannedView& view = t->view;
    if (view.rank == 1) view = {view.kind, 0, 2, view.offset, {1, view.dims[0]}, {0, view.strides[0]}};
    if (!even(view, view.rank - 2))
      return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                            "Rows of x or y lie at uneven steps: copy them first.");
    view = joined(view, view.rank - 2);
  }
  CRun run;
  const PlannedView vx = run.add(tx), vg = run.add(tg), vb = run.add(tb);
  const PlannedView views[] = {vx, vg, vb, run.result(ty), kNoView};
  const int64_t kind = params.kind == TRACEA_RMS_NORM ? norm_call::kKindRms : norm_call::kKindLayer;
  const double epsilon = static_cast<double>(params.epsilon);
  run.plan.call(kNorm, &kind, 1, &epsilon, 1, views, 5);
  return run.run("norm", failure);
}

}  // namespace tracea
