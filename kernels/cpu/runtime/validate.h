// Validates that the generated table is what library_table.py wrote, once, at registration:
// a file with damaged tables is refused with a sentence and never read through a wild pointer.
//
// Every pointer must lie in a segment of this library, every count within its bounds, and a digest
// of all names and numbers must be the one that was generated with them.  Code is not checked: what
// a function pointer leads to is only known to be code.
#pragma once
#if defined(_WIN32)
#include "runtime/system.h"
#elif defined(__APPLE__)
#include <mach-o/loader.h>
#else
#include <link.h>
#endif

#include "runtime/core.h"
#include "runtime/gemm_tile.h"
#include "runtime/isa.h"
#include "runtime/plan.h"
#include "runtime/table.h"

extern "C" const uint64_t tracea_table_digest;

namespace tracea {

constexpr int32_t kMaxTypes = 1 << 16, kMaxChains = 1 << 16, kMaxTileSide = 64;
constexpr size_t kMaxName = 128;

// The segments of this library, as the loader mapped them.
class Image {
 public:
  Image();

  bool holds(const void* data, size_t bytes) const { return inside(data, bytes, kReadable); }
  bool code(const void* function) const { return inside(function, 1, kExecutable); }
  // A string of at most kMaxName bytes without control characters.
  bool name(const char* text) const {
    for (size_t i = 0; i < kMaxName; ++i) {
      if (!holds(text + i, 1)) return false;
      if (!text[i]) return i > 0;
      if (text[i] < ' ' || text[i] > '~') return false;
    }
    return false;
  }

 private:
  enum : uint32_t { kExecutable = 1, kReadable = 4 };
  struct Segment {
    uintptr_t start, end;
    uint32_t flags;
  };

  void add(uintptr_t start, size_t bytes, bool readable, bool executable) {
    if (count_ == kSegments) return;
    const uint32_t flags = (readable ? kReadable : 0u) | (executable ? kExecutable : 0u);
    segment_[count_++] = {start, start + bytes, flags};
  }

  bool inside(const void* data, size_t bytes, uint32_t flag) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(data);
    for (int i = 0; i < count_; ++i) {
      const Segment& s = segment_[i];
      if ((s.flags & flag) && s.start <= at && at < s.end && bytes <= s.end - at) return true;
    }
    return false;
  }

  static constexpr int kSegments = 16;
  Segment segment_[kSegments];
  int count_ = 0;
};

#if defined(_WIN32)
extern "C" const IMAGE_DOS_HEADER __ImageBase;  // the linker's

inline Image::Image() {
  const uintptr_t base = reinterpret_cast<uintptr_t>(&__ImageBase);
  const auto* headers =
      reinterpret_cast<const IMAGE_NT_HEADERS*>(base + static_cast<size_t>(__ImageBase.e_lfanew));
  const IMAGE_SECTION_HEADER* section = IMAGE_FIRST_SECTION(headers);
  for (int i = 0; i < headers->FileHeader.NumberOfSections; ++i) {
    const uint32_t flags = section[i].Characteristics;
    add(base + section[i].VirtualAddress, section[i].Misc.VirtualSize, flags & IMAGE_SCN_MEM_READ,
        flags & IMAGE_SCN_MEM_EXECUTE);
  }
}
#elif defined(__APPLE__)
extern "C" const mach_header_64 __dso_handle;  // the linker's

inline Image::Image() {
  const uintptr_t base = reinterpret_cast<uintptr_t>(&__dso_handle);
  uintptr_t at = base + sizeof(mach_header_64);
  for (uint32_t i = 0; i < __dso_handle.ncmds; ++i) {
    const auto* command = reinterpret_cast<const load_command*>(at);
    if (command->cmd == LC_SEGMENT_64) {  // addresses of a library count from its own start
      const auto* segment = reinterpret_cast<const segment_command_64*>(at);
      add(base + segment->vmaddr, segment->vmsize, segment->initprot & 1, segment->initprot & 4);
    }
    at += command->cmdsize;
  }
}
#else
inline Image::Image() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* image) {
        Image& self = *static_cast<Image*>(image);
        self.count_ = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type == PT_LOAD)
            self.add(info->dlpi_addr + header.p_vaddr, header.p_memsz, header.p_flags & PF_R,
                     header.p_flags & PF_X);
        }
        // anything but 0 ends the search
        return static_cast<int>(self.holds(&tracea_library_table, 1));
      },
      this);
}
#endif

// FNV-1a over 64-bit numbers and strings, as library_table.py computes it.
class Digest {
 public:
  void number(int64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void text(const char* text) {
    for (; *text; ++text) byte(static_cast<uint8_t>(*text));
    byte(0);
  }
  uint64_t value() const { return value_; }

 private:
  void byte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }
  uint64_t value_ = 0xcbf29ce484222325;
};

constexpr size_t kTableBytes = 256;

inline bool element_codes(const Image& image, const int32_t* codes, int32_t count, Digest& digest) {
  if (!image.holds(codes, static_cast<size_t>(count) * sizeof *codes)) return false;
  for (int32_t i = 0; i < count; ++i) {
    if (!element_size(codes[i])) return false;
    digest.number(codes[i]);
  }
  return true;
}

inline bool valid_type(const Image& image, const tracea_op_type& type, Digest& digest) {
  if (!image.name(type.name) || type.inputs < 0 || type.inputs > kMaxInputs || type.outputs < 0 ||
      type.outputs > kMaxOutputs)
    return false;
  digest.text(type.name);
  digest.number(type.inputs), digest.number(type.outputs);
  return element_codes(image, type.elements, type.inputs + type.outputs, digest);
}

inline bool valid_chain(const Image& image, const tracea_chain_type& chain, Digest& digest) {
  if (chain.operands < 0 || chain.operands > TRACEA_MAX_OPERANDS || chain.results < 0 ||
      chain.results > TRACEA_MAX_RESULTS)
    return false;
  digest.number(chain.key), digest.number(chain.operands), digest.number(chain.results);
  for (int32_t i = 0; i < TRACEA_MAX_OPERANDS; ++i) {
    if (chain.kind[i] > TRACEA_SCALAR || (i < chain.operands && !element_size(chain.type[i])))
      return false;
    digest.number(chain.kind[i]), digest.number(chain.type[i]);
  }
  for (int32_t i = 0; i < TRACEA_MAX_RESULTS; ++i) {
    if (i < chain.results && !element_size(chain.result[i])) return false;
    digest.number(chain.result[i]);
  }
  if (chain.rounds < 0 || chain.rounds > 4 || chain.zero < 0 || chain.zero > 255 ||
      (chain.rounds && (chain.operands != (chain.rounds == 2 ? 4 : 3) || chain.results != 1)) ||
      (chain.rounds == 3 && !chain.table) ||
      (chain.table && (chain.rounds < 3 || !image.holds(chain.table, kTableBytes))))
    return false;
  digest.number(chain.rounds), digest.number(chain.zero);
  const float added[] = {chain.sum.low, chain.sum.high, chain.sum.times, chain.sum.added_times,
                         chain.sum.offset};
  for (const float number : added) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    digest.number(bits);
  }
  for (size_t i = 0; chain.table && i < kTableBytes; ++i) digest.number(chain.table[i]);
  return true;
}

inline bool valid_level(const Image& image, const tracea_isa_table& level, Digest& digest) {
  const int32_t sides[] = {level.gemm_mr, level.gemm_nv,     level.bf16_mr, level.bf16_nv,    level.int8_mr,
                           level.int8_nv, level.nbits_mr,    level.nbits_nv, level.conv_pixels,
                           level.conv_nv, level.bf16_pixels};
  if (!image.name(level.isa) || level_of(level.isa) < 0 || level.chains != tracea_chain_count)
    return false;
  digest.text(level.isa);
  for (int32_t side : sides) {
    if (side < 1 || side > kMaxTileSide) return false;
    digest.number(side);
  }
  const int32_t widest = max(level.bf16_mr * level.bf16_nv,
                             max(level.int8_mr * level.int8_nv, level.nbits_mr * level.nbits_nv));
  if (max(level.gemm_mr * level.gemm_nv, widest) * TRACEA_PANEL > kMaxTile) return false;
  // the functions lie between the sizes and the chains
  constexpr size_t first = offsetof(tracea_isa_table, gemm), end = offsetof(tracea_isa_table, chains);
  for (size_t at = first; at < end; at += sizeof(void*)) {
    void* function;
    memcpy(&function, reinterpret_cast<const char*>(&level) + at, sizeof function);
    if (function && !image.code(function)) return false;
    digest.number(function != nullptr);
  }
#if defined(__aarch64__)
  for (size_t at = offsetof(tracea_isa_table, chain) + sizeof(void*); at < sizeof level; at += sizeof(void*)) {
    void* function;
    memcpy(&function, reinterpret_cast<const char*>(&level) + at, sizeof function);
    if (function && !image.code(function)) return false;
  }
#endif
  const size_t chains = static_cast<size_t>(level.chains);
  if (!image.holds(level.chain_key, chains * sizeof *level.chain_key) ||
      !image.holds(level.chain, chains * sizeof *level.chain))
    return false;
  for (size_t i = 0; i < chains; ++i)
    if (level.chain_key[i] != tracea_chain_types[i].key ||
        !image.code(reinterpret_cast<const void*>(level.chain[i])))
      return false;
  return true;
}

inline bool valid_library(const Image& image, const tracea_library& library) {
  Digest digest;
  if (!image.name(library.domain) || library.isas < 1 || library.isas > kLevelCount ||
      library.types < 0 || library.types > kMaxTypes || tracea_chain_count < 0 ||
      tracea_chain_count > kMaxChains)
    return false;
  const size_t isas = static_cast<size_t>(library.isas), types = static_cast<size_t>(library.types);
  const size_t chains = static_cast<size_t>(tracea_chain_count);
  if (!image.holds(library.isa, isas * sizeof *library.isa) ||
      !image.holds(library.type, types * sizeof *library.type) ||
      !image.holds(tracea_chain_types, chains * sizeof *tracea_chain_types))
    return false;
  digest.text(library.domain);
  digest.number(library.isas), digest.number(library.types), digest.number(tracea_chain_count);
  for (size_t i = 0; i < chains; ++i)
    if (!valid_chain(image, tracea_chain_types[i], digest)) return false;
  for (size_t i = 0; i < isas; ++i)
    if (!valid_level(image, library.isa[i], digest)) return false;
  for (size_t i = 0; i < types; ++i)
    if (!valid_type(image, library.type[i], digest)) return false;
  return digest.value() == tracea_table_digest;
}

// False, with the reason, if the tables are not as they were built.
inline bool check_tables(Error& error) {
  return valid_library(Image(), tracea_library_table) ||
         error.fail("The tables of this library are damaged; build it again.");
}

// What an error is about: the library's domain, if that can be read.
inline const char* library_name() {
  const char* domain = tracea_library_table.domain;
  return Image().name(domain) ? domain : "tracea";
}

}  // namespace tracea
