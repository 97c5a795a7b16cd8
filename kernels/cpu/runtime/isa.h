// Which instruction-set level runs: the highest one that the library holds, the processor and the
// operating system support, and TRACEA_ISA allows.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "runtime/core.h"
#include "runtime/table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <processthreadsapi.h>
#endif

namespace tracea {

// Lowest first, as in isa_levels.py.
#if defined(__aarch64__)
constexpr const char* kLevels[] = {"scalar", "neon", "neondot", "neoni8mm", "neonbf16", "neonfp16"};
constexpr const char* kLevelNames = "scalar, neon, neondot, neoni8mm, neonbf16, neonfp16";
constexpr int kLevelCount = 6, kMatrixTiles = 6;  // no matrix tiles
constexpr int kHalves = 5;  // neonfp16 stands beside the others: it needs no more than neondot and fp16
#else
constexpr const char* kLevels[] = {"scalar",     "avx2",       "avxvnni", "avx512",
                                   "avx512vnni", "avx512bf16", "amxint8", "amxbf16"};
constexpr const char* kLevelNames =
    "scalar, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amxint8, amxbf16";
constexpr int kLevelCount = 8, kMatrixTiles = 6;
enum Level : int {
  kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmxInt8, kAmxBf16
};
#endif

inline int level_of(const char* name) {
  for (int i = 0; i < kLevelCount; ++i)
    if (!strcmp(name, kLevels[i])) return i;
  return -1;
}

#if defined(__x86_64__)
inline bool all_set(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// The levels this processor and operating system run, one bit each; features as in isa_levels.py.
inline uint32_t host_levels() {
  uint32_t a, b, c, d, features, c7, d7;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &a, &features, &c7, &d7))
    return 1;
  constexpr uint32_t kFma = 1u << 12, kOsXsave = 1u << 27, kAvx = 1u << 28, kAvx2Bit = 1u << 5;
  constexpr uint32_t kAvx512Bits = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // f, dq, bw, vl
  constexpr uint32_t kYmmState = 0x6, kZmmState = 0xe6, kTileState = 0x60000;
  constexpr uint32_t kAmxInt8Bits = 1u << 24 | 1u << 25, kAmxBf16Bit = 1u << 22;
  uint32_t levels = 1;
  if (!all_set(c, kFma | kOsXsave | kAvx) || !all_set(features, kAvx2Bit)) return levels;
  uint32_t state, high, more = 0;
  __asm__ volatile("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
  if (!all_set(state, kYmmState)) return levels;
  if (a >= 1) __get_cpuid_count(7, 1, &more, &b, &c, &d);
  levels |= 1u << kAvx2;
  if (all_set(more, 1u << 4)) levels |= 1u << kAvxVnni;
  if (!all_set(features, kAvx512Bits) || !all_set(state, kZmmState)) return levels;
  levels |= 1u << kAvx512;
  if (!all_set(c7, 1u << 11)) return levels;  // avx512_vnni
  levels |= 1u << kAvx512Vnni;
  const bool bf16 = all_set(more, 1u << 5);  // avx512_bf16
  if (bf16) levels |= 1u << kAvx512Bf16;
  if (!all_set(d7, kAmxInt8Bits) || !all_set(state, kTileState)) return levels;
  levels |= 1u << kAmxInt8;
  if (bf16 && all_set(d7, kAmxBf16Bit)) levels |= 1u << kAmxBf16;
  return levels;
}
#elif defined(__aarch64__)
// Whether the processor has the dot product, matrix products of bytes, bf16, and arithmetic in fp16.
#if defined(__linux__)
inline void arm_features(bool (&has)[4]) {
  const unsigned long first = getauxval(16), second = getauxval(26);  // AT_HWCAP, AT_HWCAP2
  has[0] = first >> 20 & 1, has[1] = second >> 13 & 1, has[2] = second >> 14 & 1;
  has[3] = first >> 10 & 1;  // HWCAP_ASIMDHP
}
#elif defined(__APPLE__)
inline void arm_features(bool (&has)[4]) {
  constexpr const char* kNames[] = {"hw.optional.arm.FEAT_DotProd", "hw.optional.arm.FEAT_I8MM",
                                    "hw.optional.arm.FEAT_BF16", "hw.optional.arm.FEAT_FP16"};
  for (int i = 0; i < 4; ++i) {
    int value = 0;
    size_t size = sizeof value;
    has[i] = sysctlbyname(kNames[i], &value, &size, nullptr, 0) == 0 && value == 1;
  }
}
#elif defined(_WIN32)
inline void arm_features(bool (&has)[4]) {
  // PF_ARM_V82_DP…, …I8MM…, PF_ARM_V86_BF16…, PF_ARM_V82_FP16…
  constexpr unsigned long kNumbers[] = {43, 66, 68, 67};
  for (int i = 0; i < 4; ++i) has[i] = IsProcessorFeaturePresent(kNumbers[i]) != 0;
}
#else
inline void arm_features(bool (&)[4]) {}
#endif

// Whether the core that asks runs instructions in order, by its number, which Linux tells.
inline bool asks_in_order() {
#if defined(__linux__)
  if (!(getauxval(16) >> 11 & 1)) return false;  // AT_HWCAP, HWCAP_CPUID
  uint64_t id;
  __asm__("mrs %0, midr_el1" : "=r"(id));
  if (id >> 24 != 0x41) return false;  // Arm
  // Cortex-A53, A35, A55, A510 and A520
  constexpr uint64_t kParts[] = {0xd03, 0xd04, 0xd05, 0xd46, 0xd80};
  for (const uint64_t part : kParts)
    if ((id >> 4 & 0xfff) == part) return true;
#endif
  return false;
}

// The answer of the first core that asked: the system takes a microsecond for each.
inline bool runs_in_order() {
  enum { UNKNOWN, NO, YES };
  static int known = UNKNOWN;
  int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (answer == UNKNOWN) {
    answer = asks_in_order() ? YES : NO;
    __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
  }
  return answer == YES;
}

// The levels this processor runs, one bit each: every one has the vectors of neon.
inline uint32_t host_levels() {
  bool has[4] = {};
  arm_features(has);
  int level = 1;
  while (level < kHalves - 1 && has[level - 1]) ++level;
  const bool halves = has[0] && has[3];
  return ((2u << level) - 1) | (halves ? 1u << kHalves : 0);
}
#else
inline uint32_t host_levels() { return 1; }
#endif

// Rows of the tile of a product in float32: cores that run in order take four, for which vectors are
// loaded long before their use (four_steps_ahead in micro/vec_product.h).
inline int32_t rows_of_tile(int32_t most) {
#if defined(__aarch64__)
  if (runs_in_order()) return static_cast<int32_t>(min(most, 4));
#endif
  return most;
}

// Stores past the caches are seen by others once this returns.
inline void end_streams() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

// Linux grants the tiles' state once asked for, to every thread of the process; it refuses where
// a signal stack is too small for it (Documentation/arch/x86/xstate.rst).
inline bool permitted(int level) {
  if (level < kMatrixTiles) return true;
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// The level to run, or null with the reason.
inline const tracea_isa_table* choose_isa(const tracea_library& library, Error& error) {
  const uint32_t runs = host_levels();
  int cap = 31 - __builtin_clz(runs);
  const char* wish = getenv("TRACEA_ISA");
  if (wish && *wish) {
    const int level = level_of(wish);
    if (level < 0)
      return error.fail("TRACEA_ISA is '%.40s', but must be one of %s.", wish, kLevelNames),
             nullptr;
    cap = static_cast<int>(min(cap, level));
  }
  for (int32_t i = library.isas; i-- > 0;) {
    const int level = level_of(library.isa[i].isa);
    if (level >= 0 && level <= cap && runs >> level & 1 && permitted(level)) return &library.isa[i];
  }
  error.fail(
      "This library holds kernels for %s and above, but here only %s may run; rebuild it for this "
      "processor or raise TRACEA_ISA.",
      library.isas ? library.isa[0].isa : "nothing", kLevels[cap]);
  return nullptr;
}

}  // namespace tracea
