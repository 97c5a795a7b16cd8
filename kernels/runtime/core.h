// Ground floor of the runtime: errors, memory that lives as long as a plan, size expressions.
// Nothing here throws, and nothing needs a C++ standard library.
#pragma once
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace tracea {

constexpr int kMaxRank = 8;
constexpr int kMaxExpression = 2048;  // words

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }  // a >= 0, b > 0

// The first thing that went wrong, as one sentence.
struct Error {
  bool set = false;
  char text[400];

  __attribute__((format(printf, 2, 3))) bool fail(const char* format, ...) {
    if (!set) {
      va_list args;
      va_start(args, format);
      vsnprintf(text, sizeof text, format, args);
      va_end(args);
      set = true;
    }
    return false;
  }
};

// Hands out zeroed memory; everything is freed at once.
class Pool {
 public:
  template <class T>
  T* array(int64_t count) {
    Block* block =
        static_cast<Block*>(calloc(1, sizeof(Block) + static_cast<size_t>(count) * sizeof(T)));
    if (!block) return nullptr;
    block->next = head_;
    head_ = block;
    return reinterpret_cast<T*>(block + 1);
  }
  void release() {
    while (head_) {
      Block* next = head_->next;
      free(head_);
      head_ = next;
    }
  }

 private:
  struct alignas(16) Block {
    Block* next;
  };
  Block* head_ = nullptr;
};

// A size: a number, a symbol, or postfix code over both.
enum Operator : int64_t { kNumber, kSymbol, kAdd, kSub, kMul, kFloorDiv, kCeilDiv, kMax, kMin };

struct Expr {
  enum Form : int32_t { kIsNumber, kIsSymbol, kIsCode, kIsShared } form;
  int32_t words;
  int64_t value;        // the number, or the symbol's index; of a shared one among all values
  const int64_t* code;  // kIsCode only
};

inline bool divide(int64_t a, int64_t b, bool up, int64_t* out) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  const int64_t quotient = a / b;
  const bool inexact = a % b != 0, negative = (a < 0) != (b < 0);
  *out = quotient + (inexact && up && !negative) - (inexact && !up && negative);
  return true;
}

inline bool apply(int64_t op, int64_t a, int64_t b, int64_t* out) {
  switch (op) {
    case kAdd: return !__builtin_add_overflow(a, b, out);
    case kSub: return !__builtin_sub_overflow(a, b, out);
    case kMul: return !__builtin_mul_overflow(a, b, out);
    case kFloorDiv: return divide(a, b, false, out);
    case kCeilDiv: return divide(a, b, true, out);
    case kMax: *out = max(a, b); return true;
    case kMin: *out = min(a, b); return true;
    default: return false;
  }
}

// One step of what expressions have in common: a number, or an operation on two values before it.
struct Step {
  int64_t op, a, b;
};
constexpr int64_t kNoValue = INT64_MIN;  // unknown, or of a step that overflows or divides by zero

// Computes the steps once for a run, behind the symbols that they and expressions read.
inline void compute(const Step* steps, int32_t count, int64_t first, int64_t* values) {
  for (int32_t i = 0; i < count; ++i) {
    const Step& step = steps[i];
    int64_t* out = &values[first + i];
    if (step.op == kNumber) {
      *out = step.a;
    } else {
      const int64_t a = values[step.a], b = values[step.b];
      if (a == kNoValue || b == kNoValue || !apply(step.op, a, b, out)) *out = kNoValue;
    }
  }
}

// The value of an expression whose code was checked; false on overflow or division by zero.
inline bool evaluate(const Expr& expr, const int64_t* symbols, int64_t* out) {
  if (expr.form == Expr::kIsNumber) return *out = expr.value, true;
  if (expr.form == Expr::kIsSymbol) return *out = symbols[expr.value], true;
  if (expr.form == Expr::kIsShared) return (*out = symbols[expr.value]) != kNoValue;
  int64_t stack[kMaxExpression / 2];
  int depth = 0;
  for (int i = 0; i < expr.words; ++i) {
    const int64_t op = expr.code[i];
    if (op == kNumber) {
      stack[depth++] = expr.code[++i];
    } else if (op == kSymbol) {
      stack[depth++] = symbols[expr.code[++i]];
    } else {
      --depth;
      if (!apply(op, stack[depth - 1], stack[depth], &stack[depth - 1])) return false;
    }
  }
  *out = stack[0];
  return true;
}

// Whether an expression uses a symbol that has no value.
inline bool unknown(const Expr& expr, const int64_t* symbols) {
  if (expr.form != Expr::kIsCode)
    return expr.form == Expr::kIsSymbol && symbols[expr.value] == kNoValue;
  for (int i = 0; i < expr.words; ++i) {
    const int64_t op = expr.code[i];
    if (op > kSymbol) continue;
    ++i;
    if (op == kSymbol && symbols[expr.code[i]] == kNoValue) return true;
  }
  return false;
}

// Bytes per element of an ONNX element code that programs may carry; 0 for any other.
inline int64_t element_size(int64_t code) {
  switch (code) {
    case 1: case 6: case 12: return 4;
    case 2: case 3: case 9: return 1;
    case 4: case 5: case 10: case 16: return 2;
    case 7: case 11: case 13: return 8;
    default: return 0;
  }
}

}  // namespace tracea
