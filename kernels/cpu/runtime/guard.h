// TRACEA_DEBUG=guard: every tensor of a run ends at a page that nobody may touch, inputs are read-only,
// scratch and outputs begin as a pattern, and what lies beside them is compared after each call.
// A call that writes beside a buffer is an error that names it; one that touches a guard page, or
// writes an input, says so on stderr before the process ends.
#pragma once
#if !defined(_WIN32)
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "runtime/trace.h"

namespace tracea {

#if defined(_WIN32)
inline bool run_guarded(Run& run, const Program&, int64_t*, Memory*) {
  return run.error.fail("TRACEA_DEBUG=guard is not available on Windows.");
}
#else

constexpr uint32_t kPoison = 0xffc0a5a5;  // a NaN, and an unlikely integer
constexpr uint8_t kCanary = 0xa5;

// Pages of one buffer: a guard, data at the end of whole pages, a guard.
struct GuardedBuffer {
  char *pages, *data;
  size_t mapped, bytes;
  const char* kind;
  int32_t index;
};

class Guard {
 public:
  Guard(const char* label, const Program& program) : label_(label), program_(program) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    leave();
    for (int32_t i = 0; i < count_; ++i) munmap(buffers_[i].pages, buffers_[i].mapped);
    pool_.release();
  }

  // Moves all buffers of a run behind guards.
  bool enter(Run& run, Memory* buffers) {
    const Program& p = program_;
    const int32_t all = p.input_count + p.output_count + p.temp_count;
    buffers_ = pool_.array<GuardedBuffer>(all);
    if (!buffers_) return run.error.fail("There is no memory for guards.");
    outputs_ = pool_.array<char*>(p.output_count);
    if (!outputs_) return run.error.fail("There is no memory for guards.");
    for (int32_t i = 0; i < p.output_count; ++i) outputs_[i] = buffers[p.input_count + i].data;
    for (int32_t i = 0; i < all; ++i)
      if (!move(run, buffers[i], i)) return false;
    listen();
    return true;
  }

  // Whether a call left all that lies beside its buffers as it was.
  bool intact(Run& run, int32_t call) const {
    for (int32_t i = 0; i < count_; ++i) {
      const GuardedBuffer& b = buffers_[i];
      for (const char* at = b.pages + page(); at < b.data; ++at)
        if (static_cast<uint8_t>(*at) != kCanary)
          return run.error.fail("Call %d, %s, wrote %lld bytes before %s %d.", call, name(call),
                                static_cast<long long>(b.data - at), b.kind, b.index);
    }
    return true;
  }

  // Copies outputs to where they belong, unless a call left some of them out.
  bool finish(Run& run) const {
    for (int32_t i = 0; i < count_; ++i) {
      const GuardedBuffer& b = buffers_[i];
      if (b.kind != kOutputs) continue;
      const int32_t type = program_.tensors[program_.input_count + b.index].type;
      for (size_t at = 0; type == ORT_F32 && at < b.bytes; at += sizeof kPoison)
        if (!memcmp(b.data + at, &kPoison, sizeof kPoison))
          return run.error.fail("No call wrote element %zu of output %d, or one read scratch before "
                                "it was written.", at / sizeof kPoison, b.index);
      memcpy(outputs_[b.index], b.data, b.bytes);
    }
    return true;
  }

  void at(int32_t call) { call_ = call; }

 private:
  static constexpr const char* kOutputs = "output";

  static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  const char* name(int32_t call) const { return kCalls[program_.calls[call].opcode - 1].name; }

  bool move(Run& run, Memory& memory, int32_t i) {
    const Program& p = program_;
    const bool input = i < p.input_count, output = !input && i < p.input_count + p.output_count;
    const int32_t index = input ? i : output ? i - p.input_count : i - p.input_count - p.output_count;
    const int32_t type = input || output ? p.tensors[i].type : p.temps[index].type;
    const size_t bytes = static_cast<size_t>(memory.count * element_size(type));
    const size_t inner = (bytes + page()) / page() * page();
    if (!memory.data || !bytes) return true;
    GuardedBuffer& b = buffers_[count_];
    b.mapped = inner + 2 * page();
    void* pages = mmap(nullptr, b.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return run.error.fail("There is no memory for guards.");
    ++count_;
    b.pages = static_cast<char*>(pages), b.bytes = bytes, b.index = index;
    b.kind = input ? "input" : output ? kOutputs : "temp";
    char* first = b.pages + page();
    mprotect(first, inner, PROT_READ | PROT_WRITE);
    b.data = first + inner - bytes;
    memset(first, kCanary, inner - bytes);
    if (input) memcpy(b.data, memory.data, bytes);
    else
      for (size_t at = 0; at < bytes; ++at)
        b.data[at] = static_cast<char>(kPoison >> 8 * (at % sizeof kPoison));
    if (input) mprotect(first, inner, PROT_READ);
    memory.data = b.data;
    return true;
  }

  // ---- faults ----------------------------------------------------------------------------------

  static inline Guard* active;  // the run that a fault is about; others run unnamed
  static inline struct sigaction before[2];

  void listen() {
    Guard* none = nullptr;
    if (!__atomic_compare_exchange_n(&active, &none, this, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      return;
    struct sigaction action = {};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
  }
  void leave() {
    if (__atomic_load_n(&active, __ATOMIC_ACQUIRE) != this) return;
    sigaction(SIGSEGV, &before[0], nullptr);
    sigaction(SIGBUS, &before[1], nullptr);
    __atomic_store_n(&active, static_cast<Guard*>(nullptr), __ATOMIC_RELEASE);
  }

  // Says what was touched, and lets the fault happen again as if nobody had listened.
  static void report(int, siginfo_t* info, void*) {
    const Guard& g = *active;
    const char* at = static_cast<const char*>(info->si_addr);
    for (int32_t i = 0; i < g.count_; ++i) {
      const GuardedBuffer& b = g.buffers_[i];
      if (at < b.pages || at >= b.pages + b.mapped) continue;
      const char* what = at < b.data ? "touched memory before" : at < b.data + b.bytes ? "wrote" : "touched memory behind";
      char text[kMaxLabel + 200];
      const int size = snprintf(text, sizeof text, "tracea: call %d, %s, of %s %s %s %d.\n", g.call_,
                                g.name(g.call_), g.label_ && *g.label_ ? g.label_ : "a program", what,
                                b.kind, b.index);
      if (write(STDERR_FILENO, text, static_cast<size_t>(size)) < 0) break;
    }
    sigaction(SIGSEGV, &before[0], nullptr);
    sigaction(SIGBUS, &before[1], nullptr);
  }

  const char* label_;
  const Program& program_;
  GuardedBuffer* buffers_ = nullptr;
  char** outputs_ = nullptr;
  int32_t count_ = 0, call_ = 0;
  Pool pool_;
};

inline bool run_guarded(Run& run, const Program& program, int64_t* symbols, Memory* buffers) {
  Guard guard(run.host.label, program);
  return guard.enter(run, buffers) &&
         execute(run, program, symbols, buffers, [&](int32_t i) {
           guard.at(i);
           return run_call(run, program, i, symbols, buffers) && guard.intact(run, i);
         }) &&
         guard.finish(run);
}
#endif

}  // namespace tracea
