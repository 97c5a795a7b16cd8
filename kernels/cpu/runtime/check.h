// What a call's record and its kernel ask of it: checked once, when the plan is decoded.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/plan.h"

namespace tracea {

class Signature {
 public:
  Signature(Call& call, Error& error)
      : call_(call), error_(error), spec_(kCalls[call.opcode - 1]) {}

  // Whether the call is as its record says; marks the views it writes.
  bool matches() {
    return chained() && numbers() && views() && scheduled();
  }

  bool fail(const char* what) {
    return error_.fail("The plan calls %s with %s.", spec_.name, what);
  }
  int32_t opcode() const { return call_.opcode; }
  int64_t integer(int32_t i) const { return call_.ints[i]; }
  int32_t integers() const { return call_.int_count; }
  int32_t floats() const { return call_.float_count; }
  int32_t rank(int32_t i) const { return call_.views[i].rank; }
  int32_t type(int32_t i) const { return call_.views[i].type; }
  bool lacks(int32_t i) const { return call_.views[i].kind == kNone; }
  int32_t view_count() const { return call_.view_count; }

 private:
  bool scheduled() {
    return spec_.schedule != kNoSchedule || !call_.schedule_count ||
           fail("a schedule it does not take");
  }

  bool chained() {
    const tracea_chain_type* chain = call_.chain_type();
    if (!chain) return spec_.chain != kChainRequired || fail("no chain");
    if (spec_.chain == kNoChain) return fail("a chain it does not take");
    if (spec_.chain == kEpilogue && (chain->operands < 1 || chain->kind[0] != TRACEA_FULL ||
                                     chain->type[0] != ORT_F32))
      return fail("a chain that does not begin with what it computes");
    if (spec_.chain == kPrologue && (chain->results != 1 || chain->result[0] != ORT_F32))
      return fail("a chain that does not give one float32 result");
    return true;
  }

  bool numbers() {
    int32_t fixed = 0, lists = 0;
    for (int32_t i = 0; i < spec_.attributes; ++i) {
      fixed += spec_.attribute[i].count;
      lists += !spec_.attribute[i].count;
    }
    const int32_t left = call_.int_count - fixed, floats = call_.float_count - spec_.floats;
    if (left < 0 || (lists ? left % lists : left) || floats < 0 || (floats && !spec_.float_list))
      return error_.fail("The plan calls %s with %d whole numbers and %d others.", spec_.name,
                         call_.int_count, call_.float_count);
    listed_ = lists ? left / lists : 0;
    for (int32_t i = 0, at = 0; i < spec_.attributes; ++i) {
      const AttributeSpec& attribute = spec_.attribute[i];
      const int32_t end = at + (attribute.count ? attribute.count : listed_);
      for (; at < end; ++at)
        if (!holds(attribute, call_.ints[at]))
          return error_.fail("The plan calls %s with %lld as its %s, out of range.", spec_.name,
                             static_cast<long long>(call_.ints[at]), attribute.name);
    }
    return true;
  }

  static bool holds(const AttributeSpec& attribute, int64_t value) {
    return attribute.low <= value && value <= attribute.high &&
           (!attribute.words || attribute.words >> value & 1);
  }

  int64_t parts() const { return spec_.parts < 0 ? 1 : call_.ints[spec_.parts]; }

  // How many views an operand stands for.
  int64_t count(const OperandSpec& operand) const {
    const tracea_chain_type* chain = call_.chain_type();
    switch (operand.many) {
      case kOnce: return 1;
      case kChainOperands: return chain ? chain->operands : 1;
      case kChainInputs: return chain ? chain->operands - 1 : 0;
      case kChainResults: return chain ? chain->results : parts();
      case kPerNumber: return listed_;
      default: return call_.ints[operand.many];
    }
  }

  bool views() {
    if (call_.chain_type() && parts() > 1) return fail("a chain over several results");
    int64_t wanted = 0;
    for (int32_t i = 0; i < spec_.operands; ++i) wanted += count(spec_.operand[i]);
    if (wanted != call_.view_count)
      return error_.fail("The plan calls %s with %d views instead of %lld.", spec_.name,
                         call_.view_count, static_cast<long long>(wanted));
    int32_t at = 0, outer = -1;
    for (int32_t i = 0; i < spec_.operands; ++i) {
      const int64_t views = count(spec_.operand[i]);
      for (int32_t k = 0; k < views; ++k, ++at)
        if (!view(spec_.operand[i], k, call_.views[at], &outer)) return false;
    }
    return true;
  }

  // The k-th view of an operand.  `outer`: unnamed axes of open ones, -1 before the first.
  bool view(const OperandSpec& operand, int32_t k, View& view, int32_t* outer) {
    const bool written = operand.traits & kWritten;
    if (view.kind == kNone) return operand.traits & kOptional || wrong(operand, "is missing");
    if (written && view.kind == kInput) return wrong(operand, "is an input, which it would write");
    view.written = written;
    if (operand.traits & kOpen && *outer < 0) *outer = view.rank - operand.rank;
    const int32_t rank = operand.rank + (operand.traits & kOpen ? *outer : 0);
    if (!(operand.traits & kAnyRank) && (view.rank != rank || rank < operand.rank))
      return wrong(operand, "has another rank");
    if (!typed(operand, k, view.type)) return wrong(operand, "has another element type");
    return true;
  }

  bool typed(const OperandSpec& operand, int32_t k, int32_t type) const {
    const tracea_chain_type* chain = call_.chain_type();
    const bool result = operand.traits & kWritten;
    if (chain && result && spec_.chain == kEpilogue && operand.many == kOnce &&
        (chain->results != 1 || chain->result[0] != type))
      return false;
    if (operand.types) return operand.types >> type & 1;
    if (!chain) return type == ORT_F32;
    return type == (result ? chain->result[k] : chain->type[k + (operand.many == kChainInputs)]);
  }

  bool wrong(const OperandSpec& operand, const char* what) {
    return error_.fail("The plan calls %s where %s %s.", spec_.name, operand.name, what);
  }

  Call& call_;
  Error& error_;
  const CallSpec& spec_;
  int32_t listed_ = 0;  // numbers of each list
};

}  // namespace tracea
