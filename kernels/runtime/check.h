// What a kernel asks of a call, checked once when the plan is decoded.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/plan.h"

namespace tracea {

class Signature {
 public:
  Signature(Call& call, Fault& fault, const char* kernel)
      : call_(call), fault_(fault), kernel_(kernel) {}

  bool fail(const char* what) {
    return fault_.fail("The plan calls %s with %s.", kernel_, what);
  }
  bool counts(int32_t ints, int32_t floats, int32_t views) {
    return (call_.int_count == ints && call_.float_count == floats && call_.view_count == views) ||
           fault_.fail(
               "The plan calls %s with %d ints, %d floats and %d views instead of %d, %d, %d.",
               kernel_, call_.int_count, call_.float_count, call_.view_count, ints, floats, views);
  }
  bool parameter(int32_t i, int64_t low, int64_t high) {
    return (call_.ints[i] >= low && call_.ints[i] <= high) || fail("a parameter out of range");
  }
  bool no_chain() { return call_.chain < 0 || fail("a chain it does not take"); }
  bool reads(int32_t i, int32_t rank, int32_t type = ORT_F32) {
    const View& view = call_.views[i];
    return (view.kind != kNone && view.rank == rank && view.type == type) ||
           fault_.fail("View %d of a plan's %s must have rank %d and element type %d.", i, kernel_,
                       rank, type);
  }
  bool may_read(int32_t i, int32_t rank, int32_t type = ORT_F32) {
    return call_.views[i].kind == kNone || reads(i, rank, type);
  }
  bool absent(int32_t i) { return lacks(i) || fail("a view it does not take"); }
  bool lacks(int32_t i) const { return call_.views[i].kind == kNone; }
  bool writes(int32_t i, int32_t rank, int32_t type = ORT_F32) {
    View& view = call_.views[i];
    view.written = true;
    if (view.kind == kInput) return fail("an input as its result");
    return reads(i, rank, type);
  }

  bool may_write(int32_t i, int32_t rank, int32_t type = ORT_F32) {
    return call_.views[i].kind == kNone || writes(i, rank, type);
  }

  const tracea_chain_type* chain() const { return call_.chain_type(); }
  int64_t integer(int32_t i) const { return call_.ints[i]; }
  int32_t rank(int32_t i) const { return call_.views[i].rank; }
  int32_t type(int32_t i) const { return call_.views[i].type; }
  int32_t axes(int32_t i, int32_t above) const {  // of a view beyond the first `above`; -1: no view
    return i < call_.view_count && call_.views[i].kind != kNone ? call_.views[i].rank - above : -1;
  }
  int32_t views() const { return call_.view_count; }
  bool behind(int32_t count, bool (*check)(Signature& call)) {  // of the views from `count` on
    Call inner = call_;
    inner.views += count, inner.view_count -= count;
    Signature signature(inner, fault_, kernel_);
    return check(signature);
  }
  bool takes_ints(int32_t count) {
    return call_.int_count == count || fail("the wrong number of parameters");
  }

 private:
  Call& call_;
  Fault& fault_;
  const char* kernel_;
};

}  // namespace tracea
