// Plans: the decoded form, and the decoder that trusts no word of the attribute.
// The format is written down in plan_encoding.py.
#pragma once
#include "runtime/core.h"
#include "runtime/linked_calls.h"
#include "runtime/plan_words.h"
#include "runtime/schema.h"
#include "runtime/table.h"
#include "tracea_kernels.h"

namespace tracea {

constexpr int64_t kMagic = 0x616563617274;
constexpr int64_t kVersion = 5;
constexpr int kMaxWords = 1 << 20, kMaxInputs = 512, kMaxOutputs = 64, kMaxSymbols = 64;
constexpr int kMaxTemps = 1024, kMaxCalls = 4096, kMaxParams = 16, kMaxViews = 24, kMaxSchedules = 16;
constexpr int kMaxLoops = 64, kMaxSteps = 1024;

inline bool is_winograd(int32_t opcode) {
  const Op op = kCalls[opcode - 1].op;
  return op == kWinogradOp || op == kConvDispatchOp;
}
enum BufferKind : int32_t { kNone = -1, kInput, kOutput, kTemp };

struct Tensor {
  int32_t type, rank;
  int32_t loose;  // the bits of an input's axes that may have a size of 1 as well
  const Expr* dims;
};
struct Loop {
  int32_t first, last;  // calls
  int64_t step;         // rows of an iteration; a maximum if parallel
  bool parallel;        // iterations are independent: each thread may take one
  Expr extent;          // all rows
};
struct Temp {
  int32_t type, first, last;
  int32_t loop;  // whose every iteration has its own copy of this temp, or -1
  Expr count;
};
struct View {
  BufferKind kind;
  int32_t index, rank, type;
  int32_t buffer;  // inputs, outputs, temps counted through
  bool written;
  Expr offset;
  const Expr *dims, *strides;
};
struct GemmSchedule {
  int32_t max_rows, nr_panels, mc, nc, prefetch;
};
struct ConvSchedule {  // of a convolution of up to `max_images` images; 0 where the library chooses
  int32_t max_images, ow_tile, oh_tile, ic_block, h_tasks, oc_chunk;
};
struct TaskSchedule {  // of a call of up to `max_rows` rows; 0 where the library chooses
  int32_t max_rows, rows, columns;
};
struct Call {
  int32_t opcode, int_count, float_count, view_count, schedule_count;
  int32_t result_count;  // views it writes
  int32_t chain;  // index in the chain table, or -1
  int32_t barrier_from, barrier_rows;  // has_barrier(): threads from which on, rows up to which
  const int64_t* ints;
  const double* floats;
  View* views;
  const GemmSchedule* gemm_schedules;  // of products; null for
  const ConvSchedule* conv_schedules;  // convolutions, which have these, and for
  const TaskSchedule* task_schedules;  // other calls that are cut into tasks

  const tracea_chain_type* chain_type() const {
    return chain < 0 ? nullptr : &tracea_chain_types[chain];
  }

  // How a call of so many rows is cut into tasks.
  TaskSchedule task_schedule(int64_t rows) const {
    for (int32_t i = 0; task_schedules && i < schedule_count; ++i)
      if (rows <= task_schedules[i].max_rows) return task_schedules[i];
    return {};
  }
};

struct Program {
  int32_t input_count, output_count, symbol_count, loop_count, temp_count, call_count;
  const Tensor* tensors;  // inputs, then outputs
  const Symbol* symbols;
  const Loop* loops;  // in order, with no call in common
  const Temp* temps;
  const Call* calls;
  const Step* steps;  // of sizes, which calls have in common
  int32_t step_count;
  Pool pool;

  // Those the inputs bind, then two of each loop: the first row of an iteration, and its end.
  int32_t all_symbols() const { return symbol_count + 2 * loop_count; }
  int32_t all_values() const { return all_symbols() + step_count; }
};

// Attention whose host loop neither rounds, nor reads positions or a map of tiles.
inline bool reads_all_rows(const Call& call) {
  return kCalls[call.opcode - 1].op == kAttentionOp && call.opcode != kAttentionF32AsBf16 &&
         call.ints[attention_call::kOrder] != attention_call::kOrderPlaced &&
         call.ints[attention_call::kTileKind] == attention_call::kTileKindNone;
}

// Whether a call computes lines of images from lines of images.
inline bool is_image_op(Op op) {
  return op == kConvOp || op == kConvFirstLayerOp || op == kDepthwiseOp || op == kWinogradOp ||
         op == kConvDispatchOp || op == kPoolOp;
}

// Bytes of weights up to which the product behind a call may be linked to it.  More come from memory:
// threads that are at different calls then read them at different times, once each.
constexpr int64_t kLinkedWeights = 4 << 20;

// Bytes of a view without gaps whose sizes are numbers; else more than there can be.
inline int64_t constant_bytes(const View& view) {
  int64_t bytes = element_size(view.type);
  for (int32_t i = 0; i < view.rank; ++i)
    if (view.dims[i].form != Expr::kIsNumber || __builtin_mul_overflow(bytes, view.dims[i].value, &bytes))
      return INT64_MAX;
  return bytes;
}

// Whether so many threads wait for each other before a call of so many rows that could be linked: as
// the plan says, or by the bytes of weights.
inline bool has_barrier(const Call& call, int64_t threads, int64_t rows) {
  if (call.barrier_from)
    return threads >= call.barrier_from && (!call.barrier_rows || rows <= call.barrier_rows);
  return kCalls[call.opcode - 1].op == kGemmOp &&
         constant_bytes(call.views[gemm_call::kW]) > kLinkedWeights;
}

// Whether a call's tasks may wait for the rows they read instead of for the end of the call before:
// its host loop only shares out tasks over rows, or lines of an image, and reads no values itself.
// Attention's tasks wait for all rows.
inline bool may_be_linked(const Program& program, int32_t index) {
  const Call& call = program.calls[index];
  const Op op = kCalls[call.opcode - 1].op;
  if (op == kConvFirstLayerOp) return false;  // it may copy an image first
  for (int32_t i = 0; i < program.loop_count; ++i)
    if (program.loops[i].first <= index && index <= program.loops[i].last) return false;
  if (is_image_op(op)) return true;
  if (op == kAttentionOp) return reads_all_rows(call);
  if (op != kGemmOp) return op == kNormOp;
  const int64_t layout = call.ints[gemm_call::kLayout];
  return layout == gemm_call::kLayoutPanels || layout == gemm_call::kLayoutVnni2 ||
         layout == gemm_call::kLayoutWeightOnlyBf16 || layout == gemm_call::kLayoutBf16x2;
}

constexpr int32_t kImagesApart = 2;  // calls

// The last call whose tasks may run beside those of this one.  Images are large: only the next two calls
// shall find other memory than the last one, and their tasks wait where they do not.
inline int32_t last_linked(const Program& program, int32_t call) {
  int32_t last = call;
  if (is_image_op(kCalls[program.calls[call].opcode - 1].op))
    return min(call + kImagesApart, program.call_count - 1);
  while (last + 1 < program.call_count && last + 1 - call < kMaxLinked &&
         may_be_linked(program, last + 1) && !reads_all_rows(program.calls[last + 1]) &&
         !has_barrier(program.calls[last + 1], kLinkedThreads, INT64_MAX))
    ++last;
  return last;
}

// Reads a plan's words into a program.
class Reader : PlanWords {
 public:
  Reader(const int64_t* words, int64_t count, Program* program, Error* error)
      : PlanWords(words, count, program->pool, *error), program_(program) {}

  bool program();

 private:
  void expression(Expr* out);
  const Expr* expressions(int32_t count);
  Tensor tensor();
  bool in_parallel_loop(int32_t call) const;
  void view(View* out, int32_t call);
  void call(Call* out, int32_t index);
  const GemmSchedule* gemm_schedules(int32_t count);
  const ConvSchedule* conv_schedules(int32_t count);
  const TaskSchedule* task_schedules(int32_t count);
  void loops(Loop* out);

  void share(Expr* out);
  int32_t step(int64_t op, int64_t a, int64_t b);

  int32_t symbols_ = 0;  // that expressions may use
  Step* steps_ = nullptr;  // of expressions that are shared from here on
  int16_t places_[2 * kMaxSteps] = {};  // by hash: 1 + the step, or 0
  Program* program_;
};

bool check_call(Call& call, Error& error);  // what the call's kernel asks of it; runtime/host_loops.h

inline void Reader::expression(Expr* out) {
  const int32_t words = small(1, kMaxExpression, "expression length");
  if (error_.set) return;
  if (end_ - at_ < words) return (void)error_.fail("The plan ends inside an expression.");
  int depth = 0;
  for (int i = 0; i < words; ++i) {
    const int64_t op = at_[i];
    const bool leaf = op == kNumber || op == kSymbol;
    if (op < kNumber || op > kMin || (leaf ? ++i >= words : depth < 2) ||
        (op == kSymbol && (at_[i] < 0 || at_[i] >= symbols_)))
      return (void)error_.fail("The plan holds a size expression that makes no sense.");
    depth += leaf ? 1 : -1;
  }
  if (depth != 1) return (void)error_.fail("The plan holds a size expression without one value.");
  out->form = words > 2 ? Expr::kIsCode : at_[0] == kNumber ? Expr::kIsNumber : Expr::kIsSymbol;
  out->words = words;
  out->value = at_[1];
  if (out->form == Expr::kIsCode) {
    int64_t* code = array<int64_t>(words);
    if (code) memcpy(code, at_, static_cast<size_t>(words) * sizeof *code);
    out->code = code;
    if (code && steps_) share(out);
  }
  at_ += words;
}

// The value of a step, which is there once however often expressions have it; -1 if there are too
// many.
inline int32_t Reader::step(int64_t op, int64_t a, int64_t b) {
  const uint64_t mixed = (static_cast<uint64_t>(op) * 31 + static_cast<uint64_t>(a)) * 1000003 +
                         static_cast<uint64_t>(b);
  uint64_t slot = (mixed * 0x9e3779b97f4a7c15u >> 40) % (2 * kMaxSteps);
  for (; places_[slot]; slot = (slot + 1) % (2 * kMaxSteps)) {
    const Step& known = steps_[places_[slot] - 1];
    if (known.op == op && known.a == a && known.b == b)
      return program_->all_symbols() + places_[slot] - 1;
  }
  if (program_->step_count == kMaxSteps) return -1;
  steps_[program_->step_count] = {op, a, b};
  places_[slot] = static_cast<int16_t>(++program_->step_count);
  return program_->all_values() - 1;
}

// Sizes of images of any size are long expressions, most of them alike: what does not depend on the
// iteration of a loop is computed once for a run.
inline void Reader::share(Expr* out) {
  int64_t stack[kMaxExpression / 2];
  int depth = 0;
  for (int32_t i = 0; i < out->words; ++i) {
    const int64_t op = out->code[i];
    int64_t value;
    if (op == kNumber) {
      value = step(kNumber, out->code[++i], 0);
    } else if (op == kSymbol) {
      value = out->code[++i];
      if (value >= program_->symbol_count) return;
    } else {
      depth -= 2;
      value = step(op, stack[depth], stack[depth + 1]);
    }
    if (value < 0) return;
    stack[depth++] = value;
  }
  out->form = Expr::kIsShared, out->value = stack[0];
}

inline const Expr* Reader::expressions(int32_t count) {
  Expr* items = array<Expr>(count);
  for (int32_t i = 0; items && i < count && !error_.set; ++i) expression(&items[i]);
  return items;
}

inline Tensor Reader::tensor() {
  Tensor out = {};
  out.type = type();
  rank(&out.rank, &out.loose);
  if (!error_.set) out.dims = expressions(out.rank);
  return out;
}

inline bool Reader::in_parallel_loop(int32_t call) const {
  for (int32_t i = 0; i < program_->loop_count; ++i) {
    const Loop& loop = program_->loops[i];
    if (loop.parallel && loop.first <= call && call <= loop.last) return true;
  }
  return false;
}

inline void Reader::view(View* out, int32_t call) {
  const Program& p = *program_;
  out->kind = static_cast<BufferKind>(small(kNone, kTemp, "buffer kind"));
  if (out->kind == kNone || error_.set) return;
  const int32_t counts[] = {p.input_count, p.output_count, p.temp_count};
  const int32_t before[] = {0, p.input_count, p.input_count + p.output_count};
  out->index = small(0, counts[out->kind] - 1, "buffer index");
  out->rank = small(0, kMaxRank, "view rank");
  expression(&out->offset);
  out->dims = expressions(out->rank);
  out->strides = expressions(out->rank);
  if (error_.set) return;
  out->buffer = before[out->kind] + out->index;
  if (out->kind == kTemp) {
    const Temp& temp = p.temps[out->index];
    out->type = temp.type;
    if (call < temp.first || call > temp.last)
      error_.fail("Call %d of the plan uses temp %d outside its lifetime.", call, out->index);
  } else {
    out->type = p.tensors[out->buffer].type;
  }
  // Indices are checked and then used: no other thread may write them in between.
  const bool places = out->type == ORT_I32 || out->type == ORT_I64;
  const bool own = out->kind == kInput || (out->kind == kTemp && p.temps[out->index].loop >= 0);
  if (places && !own && in_parallel_loop(call))
    error_.fail("Call %d of the plan takes integers that other iterations may write.", call);
}

inline const GemmSchedule* Reader::gemm_schedules(int32_t count) {
  GemmSchedule* items = array<GemmSchedule>(count);
  for (int32_t i = 0; items && i < count; ++i) {
    items[i].max_rows = small(0, INT32_MAX, "schedule's rows");
    items[i].nr_panels = small(0, 64, "schedule's nr_panels");
    items[i].mc = small(1, 1 << 24, "schedule's mc");
    items[i].nc = small(0, 1 << 24, "schedule's nc");
    items[i].prefetch = small(0, 1, "schedule's prefetch");
  }
  return items;
}

inline const ConvSchedule* Reader::conv_schedules(int32_t count) {
  ConvSchedule* items = array<ConvSchedule>(count);
  for (int32_t i = 0; items && i < count; ++i) {
    items[i].max_images = small(0, INT32_MAX, "schedule's images");
    items[i].ow_tile = small(0, 64, "schedule's ow_tile");
    items[i].oh_tile = small(0, 2, "schedule's oh_tile");
    items[i].ic_block = small(0, 1 << 24, "schedule's ic_block");
    items[i].h_tasks = small(0, 1 << 24, "schedule's h_tasks");
    items[i].oc_chunk = small(0, 1 << 24, "schedule's oc_chunk");
  }
  return items;
}

inline const TaskSchedule* Reader::task_schedules(int32_t count) {
  TaskSchedule* items = array<TaskSchedule>(count);
  for (int32_t i = 0; items && i < count; ++i) {
    items[i].max_rows = small(0, INT32_MAX, "schedule's rows");
    items[i].rows = small(0, 1 << 24, "schedule's rows of a task");
    items[i].columns = small(0, 1 << 24, "schedule's columns of a task");
  }
  return items;
}

inline void Reader::call(Call* out, int32_t index) {
  out->opcode = small(1, kLastOpcode, "opcode");
  out->int_count = small(0, kMaxParams, "number of ints");
  out->float_count = small(0, kMaxParams, "number of floats");
  out->view_count = small(0, kMaxViews, "number of views");
  out->schedule_count = small(0, kMaxSchedules, "number of schedules");
  out->result_count = small(0, out->view_count, "number of results");
  const int64_t key = word(-1, INT64_MAX, "chain");
  out->chain = key < 0 ? -1 : find_chain(key);
  if (key >= 0 && out->chain < 0)
    error_.fail("The plan names chain %llx, which this library does not hold.",
                 static_cast<unsigned long long>(key));
  int64_t* ints = array<int64_t>(out->int_count);
  double* floats = array<double>(out->float_count);
  View* views = array<View>(out->view_count);
  if (!ints || !floats || !views) return;
  for (int32_t i = 0; i < out->int_count; ++i) ints[i] = word(INT64_MIN, INT64_MAX, "parameter");
  for (int32_t i = 0; i < out->float_count; ++i) {
    const int64_t bits = word(INT64_MIN, INT64_MAX, "parameter");
    memcpy(&floats[i], &bits, sizeof bits);
  }
  for (int32_t i = 0; i < out->view_count; ++i) view(&views[i], index);
  out->ints = ints;
  out->floats = floats;
  out->views = views;
  const CallSchedule kind = kCalls[out->opcode - 1].schedule;
  if (kind == kConvSchedule) out->conv_schedules = conv_schedules(out->schedule_count);
  else if (kind == kTaskSchedule) out->task_schedules = task_schedules(out->schedule_count);
  else out->gemm_schedules = gemm_schedules(out->schedule_count);
  if (!error_.set) check_call(*out, error_);
}

inline void Reader::loops(Loop* out) {
  int32_t free = 0;  // the first call that is in no loop yet
  for (int32_t i = 0; i < program_->loop_count && !error_.set; ++i) {
    out[i].first = small(free, program_->call_count - 1, "loop's first call");
    out[i].last = small(out[i].first, program_->call_count - 1, "loop's last call");
    out[i].step = word(1, INT32_MAX, "loop's rows");
    out[i].parallel = small(0, 1, "loop's independence") != 0;
    expression(&out[i].extent);
    free = out[i].last + 1;
  }
}

inline bool Reader::program() {
  Program& p = *program_;
  header(kMagic, kVersion);
  p.input_count = small(1, kMaxInputs, "number of inputs");
  p.output_count = small(1, kMaxOutputs, "number of outputs");
  p.symbol_count = symbols_ = small(0, kMaxSymbols, "number of symbols");
  p.loop_count = small(0, kMaxLoops, "number of loops");
  p.temp_count = small(0, kMaxTemps, "number of temps");
  p.call_count = small(0, kMaxCalls, "number of calls");
  Tensor* tensors = array<Tensor>(p.input_count + p.output_count);
  Symbol* symbols = array<Symbol>(p.symbol_count);
  Loop* loop_items = array<Loop>(p.loop_count);
  Temp* temps = array<Temp>(p.temp_count);
  Call* calls = array<Call>(p.call_count);
  if (!tensors || !symbols || !loop_items || !temps || !calls) return false;
  p.tensors = tensors, p.symbols = symbols, p.loops = loop_items, p.temps = temps, p.calls = calls;
  for (int32_t i = 0; i < p.input_count + p.output_count; ++i) tensors[i] = tensor();
  for (int32_t i = 0; i < p.symbol_count; ++i) {
    symbols[i].input = small(0, p.input_count - 1, "symbol's input");
    symbols[i].axis = small(0, tensors[symbols[i].input].rank - 1, "symbol's axis");
  }
  loops(loop_items);
  steps_ = array<Step>(kMaxSteps);
  if (!steps_) return false;
  p.steps = steps_;
  for (int32_t i = 0; i < p.temp_count; ++i) {
    temps[i].type = type();
    expression(&temps[i].count);
    temps[i].first = small(0, p.call_count - 1, "temp's first call");
    temps[i].last = small(temps[i].first, p.call_count - 1, "temp's last call");
    temps[i].loop = -1;
    for (int32_t k = 0; k < p.loop_count; ++k)
      if (loop_items[k].parallel && loop_items[k].first <= temps[i].first &&
          temps[i].last <= loop_items[k].last)
        temps[i].loop = k;
  }
  symbols_ = p.all_symbols();
  for (int32_t i = 0; i < p.call_count && !error_.set; ++i) call(&calls[i], i);
  for (int32_t i = 0; i < p.call_count && !error_.set && (i || at_ != end_); ++i)
    calls[i].barrier_from = small(0, kMaxTeam + 1, "threads of a barrier"),
    calls[i].barrier_rows = small(0, INT32_MAX, "rows of a barrier");
  return finished();
}

inline bool has_size(const Program&, const Tensor& tensor, int32_t axis, int64_t size) {
  return tensor.dims[axis].form == Expr::kIsNumber && tensor.dims[axis].value == size;
}
inline bool has_symbol(const Program&, const Tensor& tensor, int32_t axis, int32_t symbol) {
  return tensor.dims[axis].form == Expr::kIsSymbol && tensor.dims[axis].value == symbol;
}

// Sizes of tensors where some symbols are unknown, which then have kNoValue.
class KnownSizes {
 public:
  KnownSizes(Program&, const int64_t* symbols) : symbols_(symbols) {}

  // Negative if it depends on an unknown symbol or cannot be computed.
  int64_t of(const Tensor& tensor, int32_t axis) const {
    const Expr& expr = tensor.dims[axis];
    int64_t size;
    return !unknown(expr, symbols_) && evaluate(expr, symbols_, &size) ? size : kNoValue;
  }

 private:
  const int64_t* symbols_;
};

}  // namespace tracea
