// What every backend checks of the tensors and parameters of the C interface, before it reads any.
#pragma once
#include "runtime/core.h"
#include "runtime/tracea.h"

namespace tracea {

// A status with its sentence.
struct Failure : Error {
  TraceaStatus status = TRACEA_SUCCESS;

  __attribute__((format(printf, 3, 4))) bool refuse(TraceaStatus code, const char* format, ...) {
    if (set) return false;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return set = true, status = code, false;
  }
};

enum TensorTraits : uint32_t { kResult = 1, kUnitColumns = 2, kAlsoBool = 4 };

// Elements from element 0 to the one that lies lowest (not positive) and highest; `none`: no element.
struct TensorSpan {
  int64_t low, high;
  bool none;

  int64_t count() const { return none ? 0 : high - low + 1; }
};

inline bool refuse_shape(Failure& failure, const char* name, const char* what) {
  return failure.refuse(TRACEA_INVALID_PARAMS, "%s %s.", name, what);
}

// Whether no two indices name one element.
inline bool one_each(const TraceaTensorView& t) {
  int32_t order[kMaxRank], axes = 0;
  const auto step = [&](int32_t axis) { return t.stride[axis] < 0 ? -t.stride[axis] : t.stride[axis]; };
  for (int32_t i = 0; i < t.rank; ++i) {
    if (t.shape[i] <= 1) continue;
    int32_t at = axes++;
    for (; at > 0 && step(order[at - 1]) > step(i); --at) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t reach = 0;
  for (int32_t i = 0; i < axes; ++i) {
    if (step(order[i]) <= reach) return false;
    reach += (t.shape[order[i]] - 1) * step(order[i]);
  }
  return true;
}

// Checks shape, strides and address of a tensor with `least` to `most` axes, of a type that is
// known, and finds its span.
inline bool check_tensor(Failure& failure, const char* name, const TraceaTensorView& t, int32_t least,
                         int32_t most, uint32_t traits, TensorSpan* out) {
  if (t.rank < least || t.rank > most)
    return failure.refuse(TRACEA_INVALID_PARAMS, "%s has %d axes, but must have %d to %d.", name,
                          t.rank, least, most);
  const int64_t size = element_size(t.dtype);
  int64_t low = 0, high = 0, span;
  bool none = false, fits = true;
  for (int32_t i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0)
      return failure.refuse(TRACEA_INVALID_PARAMS, "%s has size %lld at axis %d.", name,
                            static_cast<long long>(t.shape[i]), i);
    none = none || t.shape[i] == 0;
  }
  for (int32_t i = 0; !none && i < t.rank; ++i) {
    int64_t* edge = t.stride[i] < 0 ? &low : &high;
    fits = fits && !__builtin_mul_overflow(t.shape[i] - 1, t.stride[i], &span) &&
           !__builtin_add_overflow(*edge, span, edge);
  }
  constexpr int64_t kMost = INT64_MAX / 16;
  if (!fits || high > kMost || low < -kMost)
    return refuse_shape(failure, name, "is larger than memory can be");
  if (!none && !t.ptr) return refuse_shape(failure, name, "has elements, but no memory (ptr is null)");
  if (reinterpret_cast<uintptr_t>(t.ptr) % static_cast<uintptr_t>(size))
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "%s begins at %p, which is no multiple of the %lld bytes of an element.",
                          name, t.ptr, static_cast<long long>(size));
  const int32_t last = t.rank - 1;
  if (traits & kUnitColumns && !none && t.shape[last] > 1 && t.stride[last] != 1)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "%s has stride %lld along its last axis, but must have 1: copy it first.",
                          name, static_cast<long long>(t.stride[last]));
  if (traits & kResult && !none && !one_each(t))
    return refuse_shape(failure, name, "is a result whose strides put elements over each other");
  return *out = {low, high, none}, true;
}

// Kernels write results while they read operands: refuses an operand that shares [begin, end).
inline bool check_separate(Failure& failure, uintptr_t begin, uintptr_t end, uintptr_t from,
                           uintptr_t to, const char* name) {
  return begin == end || from == to || end <= from || to <= begin ||
         failure.refuse(TRACEA_INVALID_PARAMS, "The result shares memory with %s.", name);
}

// a [.., M, K], b [.., K, N], c [.., M, N].
inline bool check_product(Failure& failure, const TraceaTensorView& a, int64_t k, int64_t n,
                          const TraceaTensorView& c) {
  const int32_t last = a.rank - 1;
  bool same = c.rank == a.rank && a.shape[last] == k && c.shape[last] == n;
  for (int32_t i = 0; same && i < last; ++i) same = a.shape[i] == c.shape[i];
  return same || failure.refuse(TRACEA_INVALID_PARAMS,
                                "The shapes of a, b and c do not fit: a [.., M, %lld], b [.., %lld, "
                                "%lld], c [.., M, N].", static_cast<long long>(a.shape[last]),
                                static_cast<long long>(k), static_cast<long long>(n));
}

// Parameters of a convolution, and filters [O, C / groups, kh, kw].
inline bool check_conv2d(Failure& failure, const TraceaConv2dParams& p, const TraceaTensorView& w) {
  constexpr int32_t kMost = 1 << 16;
  bool ok = p.groups >= 1 && p.groups <= kMost;
  for (int i = 0; i < 2; ++i)
    ok = ok && p.stride[i] >= 1 && p.stride[i] <= kMost && p.dilation[i] >= 1 &&
         p.dilation[i] <= kMost;
  for (int i = 0; i < 4; ++i) ok = ok && p.padding[i] >= 0 && p.padding[i] <= kMost;
  if (!ok)
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "Strides, dilations and groups are 1 to 65536, paddings 0 to 65536.");
  if (p.algorithm < TRACEA_CONV_AUTO || p.algorithm > TRACEA_CONV_WINOGRAD4)
    return failure.refuse(TRACEA_INVALID_PARAMS, "There is no algorithm %d.", p.algorithm);
  for (int i = 0; i < 4; ++i) ok = ok && w.shape[i] > 0;
  if (!ok || w.shape[0] % p.groups)
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "w has %lld filters of %lld channels, which %d groups cannot share.",
                          static_cast<long long>(w.shape[0]), static_cast<long long>(w.shape[1]),
                          p.groups);
  return true;
}

// Shapes of x [N, C, H, W] and y [N, O, H', W'] for filters of these sizes.
inline bool check_images(Failure& failure, const TraceaConv2dParams& p, const int64_t* filters,
                         const TraceaTensorView& x, const TraceaTensorView& y) {
  int64_t channels;
  if (__builtin_mul_overflow(filters[1], p.groups, &channels) || x.shape[1] != channels ||
      y.shape[1] != filters[0] || x.shape[0] != y.shape[0])
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "The shapes of x, w and y do not fit: x [N, %lld, H, W], y [N, %lld, H', W'].",
                          static_cast<long long>(filters[1]) * p.groups,
                          static_cast<long long>(filters[0]));
  for (int i = 0; i < 2; ++i) {
    const int64_t padded = x.shape[2 + i] + p.padding[i] + p.padding[2 + i];
    const int64_t window = p.dilation[i] * (filters[2 + i] - 1) + 1;
    const int64_t size = padded < window ? 0 : (padded - window) / p.stride[i] + 1;
    if (y.shape[2 + i] != size)
      return failure.refuse(TRACEA_INVALID_PARAMS, "y has %lld %s, but must have %lld.",
                            static_cast<long long>(y.shape[2 + i]), i ? "columns" : "rows",
                            static_cast<long long>(size));
  }
  return true;
}

// A caller's parameters over the defaults: as much of them as the caller knows.
template <class Params>
bool read_params(Failure& failure, const Params* given, Params* out) {
  if (!given) return true;
  const uint32_t own = sizeof(Params), size = given->struct_size;
  if (size < 2 * sizeof(uint32_t) || size > 4096)
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "struct_size of the parameters is %u: begin with the _INIT macro.", size);
  memcpy(static_cast<void*>(out), given, size < own ? size : own);
  for (uint32_t i = own; i < size; ++i)
    if (reinterpret_cast<const char*>(given)[i])
      return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                            "The parameters use a field that this version of the library lacks.");
  return true;
}

}  // namespace tracea
