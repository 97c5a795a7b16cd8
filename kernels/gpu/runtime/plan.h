// Decodes a node's plan and checks every word; kernels/gpu/plan_encoding.py documents the format.
#pragma once
#include "runtime/core.h"
#include "runtime/plan_words.h"
#include "runtime/table.h"

namespace tracea {

constexpr int64_t kMagic = 0x7570676165636172, kVersion = 3;
constexpr int64_t kMaxWords = 1 << 20, kMaxInputs = 1024, kMaxOutputs = 64, kMaxSymbols = 64;
constexpr int64_t kMaxSizes = 1 << 14, kMaxTemps = 4096, kMaxLaunches = 8192, kMaxArguments = 256;
constexpr int64_t kMostCounted = INT32_MAX;  // most elements or threads that a kernel can index
constexpr int64_t kMaxThreads = 1024, kMaxShared = 227 << 10;
// ONNX element types UINT8, INT8, FLOAT16, BFLOAT16, FLOAT8E4M3FN and FLOAT8E5M2
constexpr int32_t kByte = 2, kSignedByte = 3, kHalf = 10, kBrainHalf = 16, kE4M3 = 17, kE5M2 = 19;
constexpr int32_t kFloat = 1, kTf32 = 32;  // the latter are floats that a copy rounds
constexpr int64_t kMaxBlocks = 32, kMaxOthers = 15, kMaxAxes = 5, kMaxBox = 256, kMaxStep = 8;

// Bytes of an element of a tensor; only inputs and outputs of nodes are 8-bit floats.
inline bool is_float8(int64_t type) { return type == kE4M3 || type == kE5M2; }
inline int64_t bytes_per_element(int32_t type) { return is_float8(type) ? 1 : element_size(type); }

struct Size {  // a number, a symbol, or an operation on two earlier sizes
  int64_t op, a, b;
};
struct Tensor {
  int32_t type, rank;
  int32_t loose;  // bit mask of an input's axes that may also have size 1
  int32_t dims[kMaxRank];  // sizes
};
struct Temp {
  int32_t type, count, first, last;  // count is a size
};
struct Map {  // a tensor map's view of its tensor, innermost axis first
  int32_t type, rank;
  int32_t dims[kMaxAxes], strides[kMaxAxes];  // sizes; strides from axis 1 on
  uint32_t box[kMaxAxes];
  // sizes, of an image's width and height, and of a volume's depth: kernels/gpu/launch.py
  int32_t before[3], after[3];
  uint32_t steps[3];
};
struct Argument {
  enum Kind : int32_t { kPointer, kWhole, kReal, kDivisor, kFixed, kMap, kPixels } kind;
  int32_t buffer;  // index of a pointer's buffer; -1: null
  bool written;
  int32_t bytes;  // size of an element
  int64_t value;  // a size, the bits of a number, or the size that is a pointer's offset
  int32_t span;   // the size that bounds the elements touched from there on
  const Map* map;

  bool addresses() const { return kind == kPointer || maps(); }
  bool maps() const { return kind == kMap || kind == kPixels; }
};
struct Launch {
  int32_t kernel;  // index in the library's table
  int32_t grid[3];
  int32_t threads, shared;
  int32_t persistent;  // most blocks per multiprocessor of a persistent kernel; 0: not persistent
  int32_t when;        // a size; the launch applies where it is positive
  int32_t others;      // number of alternatives that follow
  int32_t count;
  const Argument* arguments;
};

struct Program {
  int32_t input_count, output_count, symbol_count, size_count, temp_count, launch_count;
  const Symbol* symbols;
  const Size* sizes;
  const Tensor* tensors;  // inputs, then outputs
  const Temp* temps;
  const Launch* launches;
  Pool pool;

  int32_t tensor_count() const { return input_count + output_count; }
  int32_t buffer_count() const { return tensor_count() + temp_count; }
};

inline int32_t find_kernel(int64_t key) {
  const tracea_gpu_library& table = tracea_gpu_table;
  int32_t low = 0, high = table.kernel_count;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (table.kernels[middle].key < key) low = middle + 1;
    else high = middle;
  }
  return low < table.kernel_count && table.kernels[low].key == key ? low : -1;
}

// Computes all sizes of a program; kNoValue on overflow or a division by zero.
inline void evaluate(const Program& p, const int64_t* symbols, int64_t* sizes) {
  for (int32_t i = 0; i < p.size_count; ++i) {
    const Size& size = p.sizes[i];
    if (size.op == kNumber) {
      sizes[i] = size.a;
    } else if (size.op == kSymbol) {
      sizes[i] = symbols[size.a];
    } else {
      const int64_t a = sizes[size.a], b = sizes[size.b];
      if (a == kNoValue || b == kNoValue || !apply(size.op, a, b, &sizes[i])) sizes[i] = kNoValue;
    }
  }
}

// Parses a plan's words into a program.
class Reader : PlanWords {
 public:
  Reader(const int64_t* words, int64_t count, Program* program, Error* error)
      : PlanWords(words, count, program->pool, *error), p_(*program) {}

  bool program() {
    header(kMagic, kVersion);
    p_.input_count = small(1, kMaxInputs, "number of inputs");
    p_.output_count = small(1, kMaxOutputs, "number of outputs");
    p_.symbol_count = small(0, kMaxSymbols, "number of symbols");
    p_.size_count = small(0, kMaxSizes, "number of sizes");
    p_.temp_count = small(0, kMaxTemps, "number of temps");
    p_.launch_count = small(0, kMaxLaunches, "number of launches");
    Symbol* symbols = array<Symbol>(p_.symbol_count);
    Size* sizes = array<Size>(p_.size_count);
    Tensor* tensors = array<Tensor>(p_.tensor_count());
    Temp* temps = array<Temp>(p_.temp_count);
    Launch* launches = array<Launch>(p_.launch_count);
    if (error_.set) return false;
    p_.symbols = symbols, p_.sizes = sizes, p_.tensors = tensors, p_.temps = temps;
    p_.launches = launches;
    for (int32_t i = 0; i < p_.symbol_count; ++i) {
      symbols[i].input = small(0, p_.input_count - 1, "symbol's input");
      symbols[i].axis = small(0, kMaxRank - 1, "symbol's axis");
    }
    for (int32_t i = 0; i < p_.size_count && !error_.set; ++i) size(&sizes[i], i);
    for (int32_t i = 0; i < p_.tensor_count() && !error_.set; ++i) tensor(&tensors[i]);
    for (int32_t i = 0; i < p_.symbol_count && !error_.set; ++i)
      if (symbols[i].axis >= tensors[symbols[i].input].rank)
        error_.fail("The plan binds a symbol to an axis that is not there.");
    for (int32_t i = 0; i < p_.temp_count && !error_.set; ++i) {
      temps[i].type = type();
      temps[i].count = size_number();
      temps[i].first = small(0, p_.launch_count - 1, "temp's first launch");
      temps[i].last = small(temps[i].first, p_.launch_count - 1, "temp's last launch");
    }
    for (int32_t i = 0; i < p_.launch_count && !error_.set; ++i) launch(&launches[i], i);
    return finished();
  }

 private:
  int32_t size_number() { return small(0, p_.size_count - 1, "size"); }
  void size(Size* out, int32_t index) {
    out->op = word(kNumber, kMin, "operator");
    const bool number = out->op == kNumber, symbol = out->op == kSymbol;
    const int64_t before = symbol ? p_.symbol_count - 1 : index - 1;
    out->a = number ? word(INT64_MIN + 1, INT64_MAX, "number") : word(0, before, "size");
    out->b = number || symbol ? word(0, 0, "size") : word(0, before, "size");
  }

  void tensor(Tensor* out) {
    const bool float8 = !error_.set && at_ != end_ && is_float8(*at_);
    out->type = float8 ? small(kE4M3, kE5M2, "element type") : type();
    rank(&out->rank, &out->loose);
    if (error_.set) return;
    for (int32_t i = 0; i < out->rank; ++i) out->dims[i] = size_number();
  }

  void launch(Launch* out, int32_t index) {
    const int64_t key = word(0, INT64_MAX, "kernel");
    out->kernel = find_kernel(key);
    if (!error_.set && out->kernel < 0)
      error_.fail("The plan names kernel %llx, which this library does not hold.",
                  static_cast<unsigned long long>(key));
    for (int32_t& extent : out->grid) extent = size_number();
    out->threads = small(1, kMaxThreads, "number of threads");
    out->shared = small(0, kMaxShared, "shared memory");
    out->persistent = small(0, kMaxBlocks, "number of blocks");
    out->when = size_number();
    out->others = small(0, min(kMaxOthers, p_.launch_count - 1 - index), "number of launches");
    out->count = small(0, kMaxArguments, "number of arguments");
    Argument* arguments = array<Argument>(out->count);
    out->arguments = arguments;
    for (int32_t i = 0; i < out->count && !error_.set; ++i) argument(&arguments[i], index);
  }

  void argument(Argument* out, int32_t launch) {
    out->kind = static_cast<Argument::Kind>(small(0, 6, "argument"));
    if (out->kind == Argument::kReal) {
      out->value = word(0, UINT32_MAX, "number");
    } else if (out->kind == Argument::kFixed) {
      out->buffer = small(0, p_.buffer_count() - 1, "buffer");
    } else if (!out->addresses()) {
      out->value = size_number();
    } else {
      const bool map = out->maps();
      out->buffer = small(map ? 0 : -1, p_.buffer_count() - 1, "buffer");
      out->written = small(0, 1, "direction") != 0;
      out->bytes = small(1, 16, "bytes of an element");
      out->value = size_number();
      out->span = size_number();
      if (out->written && out->buffer >= 0 && out->buffer < p_.input_count)
        error_.fail("Launch %d of the plan writes to an input.", launch);
      const int32_t temp = out->buffer - p_.tensor_count();
      if (!error_.set && temp >= 0 &&
          (launch < p_.temps[temp].first || launch > p_.temps[temp].last))
        error_.fail("Launch %d of the plan uses temp %d outside its lifetime.", launch, temp);
      if (map) tensor_map(out);
    }
  }

  void tensor_map(Argument* out) {
    Map* map = array<Map>(1);
    if (error_.set) return;
    out->map = map;
    map->type = small(1, kTf32, "element type of a tensor map");
    map->rank = small(2, kMaxAxes, "rank of a tensor map");
    for (int32_t i = 0; i < map->rank && !error_.set; ++i) map->dims[i] = size_number();
    for (int32_t i = 1; i < map->rank && !error_.set; ++i) map->strides[i] = size_number();
    const bool pixels = out->kind == Argument::kPixels;
    if (pixels && map->rank < 4) error_.fail("A tensor map of the plan is of no image.");
    for (int32_t i = 0; i < (pixels ? 2 : map->rank) && !error_.set; ++i)
      map->box[i] = static_cast<uint32_t>(small(1, kMaxBox, "box of a tensor map"));
    for (int32_t i = 0; pixels && i < map->rank - 2 && !error_.set; ++i) {
      map->before[i] = size_number(), map->after[i] = size_number();
      map->steps[i] = static_cast<uint32_t>(small(1, kMaxStep, "step of a tensor map"));
    }
    const bool bytes = map->type == kByte || map->type == kSignedByte;
    const bool floats = map->type == kFloat || map->type == kTf32;
    if (!error_.set && !bytes && !floats && map->type != kHalf && map->type != kBrainHalf)
      error_.fail("A tensor map of the plan has elements that are no numbers of 8, 16 or 32 bits.");
  }

  Program& p_;
};

inline bool has_size(const Program& p, const Tensor& tensor, int32_t axis, int64_t size) {
  const Size& own = p.sizes[tensor.dims[axis]];
  return own.op == kNumber && own.a == size;
}
inline bool has_symbol(const Program& p, const Tensor& tensor, int32_t axis, int32_t symbol) {
  const Size& own = p.sizes[tensor.dims[axis]];
  return own.op == kSymbol && own.a == symbol;
}

// Computes tensor sizes while some symbols are unknown, which gives kNoValue.
class KnownSizes {
 public:
  KnownSizes(Program& program, const int64_t* symbols)
      : sizes_(program.pool.array<int64_t>(program.size_count + 1)) {
    if (sizes_) evaluate(program, symbols, sizes_);
  }

  // Negative if it depends on an unknown symbol or overflows.
  int64_t of(const Tensor& tensor, int32_t axis) const {
    return sizes_ ? sizes_[tensor.dims[axis]] : kNoValue;
  }

 private:
  int64_t* sizes_;
};

}  // namespace tracea
