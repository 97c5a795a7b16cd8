// Digests of constants, by which sessions recognise equal weights.
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

namespace tracea {

// One word into one lane of a digest.
inline void mix(uint64_t& lane, uint64_t word) {
  lane = (lane ^ word) * 0xff51afd7ed558ccdu, lane ^= lane >> 29;
  asm("" : "+r"(lane));  // keeps lanes apart: SSE2 has no product of 64-bit numbers
}

// Four independent lanes hide the latency of the multiplication; memory is the limit.
inline void digest_of(const void* data, int64_t bytes, uint64_t* out) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  uint64_t a = 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(bytes), b = 0xc2b2ae3d27d4eb4fu;
  uint64_t c = 0x165667b19e3779f9u, d = 0x27d4eb2f165667c5u, words[4] = {};
  for (; bytes >= 32; bytes -= 32, at += 32) {
    memcpy(words, at, 32);
    mix(a, words[0]), mix(b, words[1]), mix(c, words[2]), mix(d, words[3]);
  }
  if (bytes > 0) {
    memset(words, 0, 32), memcpy(words, at, static_cast<size_t>(bytes));
    mix(a, words[0]), mix(b, words[1]), mix(c, words[2]), mix(d, words[3]);
  }
  uint64_t first = a, second = d;
  const uint64_t up[3] = {b, c, d}, down[3] = {c, b, a};
  for (int i = 0; i < 3; ++i) {
    first = (first ^ up[i]) * 0xc4ceb9fe1a85ec53u, first ^= first >> 31;
    second = (second + down[i]) * 0x2127599bf4325c37u, second ^= second >> 29;
  }
  out[0] = first, out[1] = second;
}

// Bytes whose digest is wanted.
struct Digested {
  const void* data;
  int64_t bytes;
  uint64_t* digest;  // receives two words
  int64_t first;     // number of its first part among all parts
};

// Computes digests on several threads, since one does not saturate memory bandwidth.  Threads share
// large constants by parts; the digest of these is that of the digests of their parts.
struct Digests {
  static constexpr int64_t kPart = 4 << 20;
  static constexpr int32_t kMostHelpers = 7;
  Digested* items;
  int32_t count;
  uint64_t* parts;  // two words for each part
  int64_t next, total;

  static int64_t parts_of(int64_t bytes) { return bytes > kPart ? (bytes + kPart - 1) / kPart : 1; }

  static void* work(void* shared) {
    Digests& own = *static_cast<Digests*>(shared);
    int32_t i = 0;
    for (;;) {
      const int64_t part = __atomic_fetch_add(&own.next, 1, __ATOMIC_RELAXED);
      if (part >= own.total) return nullptr;
      while (i + 1 < own.count && own.items[i + 1].first <= part) ++i;
      const Digested& item = own.items[i];
      const int64_t start = (part - item.first) * kPart, rest = item.bytes - start;
      digest_of(static_cast<const char*>(item.data) + start, rest < kPart ? rest : kPart,
                own.parts + 2 * part);
    }
  }

  // `items` have consecutive parts, `total` in all.
  void run() {
    const int64_t large = total * kPart >> 25, others = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    const int64_t wanted = large < others ? large : others;
    pthread_t threads[kMostHelpers];
    int32_t started = 0;
    next = 0;
    while (started < wanted && started < kMostHelpers &&
           !pthread_create(&threads[started], nullptr, work, this))
      ++started;
    work(this);
    while (started) pthread_join(threads[--started], nullptr);
    for (int32_t i = 0; i < count; ++i) {
      const int64_t own = parts_of(items[i].bytes);
      uint64_t* const found = parts + 2 * items[i].first;
      if (own == 1) memcpy(items[i].digest, found, 16);
      else digest_of(found, own * 16, items[i].digest);
    }
  }
};

}  // namespace tracea
