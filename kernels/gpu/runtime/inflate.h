// Decompresses zlib streams (RFC 1950, 1951), as which kernel images are stored.
#pragma once
#include <stdint.h>
#include <string.h>

namespace tracea {

// A canonical Huffman code of up to 288 symbols.
struct HuffmanCode {
  static constexpr int kFast = 10, kLongest = 15;
  uint16_t fast[1 << kFast];  // by the next bits: 16 * symbol + length, or 0 if the code is longer
  uint16_t count[kLongest + 1], symbols[288];

  // Assigns codes to symbols of these lengths; false if there are too many short ones.
  bool assign(const uint8_t* lengths, int symbol_count) {
    uint16_t first[kLongest + 2] = {}, code[kLongest + 2] = {};
    memset(count, 0, sizeof count), memset(fast, 0, sizeof fast);
    for (int s = 0; s < symbol_count; ++s) ++count[lengths[s]];
    count[0] = 0;
    for (int length = 1, left = 1; length <= kLongest; ++length) {
      if ((left = 2 * left - count[length]) < 0) return false;
      first[length + 1] = static_cast<uint16_t>(first[length] + count[length]);
      code[length + 1] = static_cast<uint16_t>((code[length] + count[length]) << 1);
    }
    for (int s = 0; s < symbol_count; ++s) {
      const int length = lengths[s];
      if (!length) continue;
      symbols[first[length]++] = static_cast<uint16_t>(s);
      unsigned value = code[length]++, reversed = 0;
      if (length > kFast) continue;
      for (int i = 0; i < length; ++i, value >>= 1) reversed = reversed << 1 | (value & 1);
      for (; reversed < 1 << kFast; reversed += 1 << length)
        fast[reversed] = static_cast<uint16_t>(16 * s + length);
    }
    return true;
  }
};

class Inflater {
 public:
  // Decompresses a stream that holds exactly `size` bytes; false if it is damaged.
  bool run(const void* stream, int64_t bytes, void* to, int64_t size) {
    at_ = static_cast<const uint8_t*>(stream), end_ = at_ + bytes;
    to_ = static_cast<uint8_t*>(to), size_ = size, made_ = 0;
    held_ = 0, count_ = 0, damaged_ = false;
    const uint32_t method = take(8), flags = take(8);
    if ((method & 15) != 8 || (256 * method + flags) % 31 || flags & 32) return false;
    bool last = false;
    while (!last && !damaged_) {
      last = take(1);
      const uint32_t kind = take(2);
      if (!(kind == 0 ? stored() : kind == 1 ? fixed() : kind == 2 && dynamic())) return false;
    }
    take(count_ & 7);
    uint32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum = sum << 8 | take(8);
    return !damaged_ && made_ == size_ && sum == checksum();
  }

 private:
  void refill() {
    for (; count_ <= 56 && at_ < end_; count_ += 8) held_ |= static_cast<uint64_t>(*at_++) << count_;
  }

  void drop(int bits) {
    damaged_ = damaged_ || bits > count_;
    if (damaged_) return;
    held_ >>= bits, count_ -= bits;
  }

  uint32_t take(int bits) {
    refill();
    const uint32_t value = static_cast<uint32_t>(held_ & ((uint64_t{1} << bits) - 1));
    drop(bits);
    return value;
  }

  // The next symbol of a code, or -1.
  int symbol(const HuffmanCode& of) {
    refill();
    if (const uint16_t found = of.fast[held_ & ((1 << HuffmanCode::kFast) - 1)]) {
      drop(found & 15);
      return damaged_ ? -1 : found >> 4;
    }
    int code = 0, first = 0, index = 0;  // lengths in turn: the code of each begins after the last
    for (int length = 1; length <= HuffmanCode::kLongest; ++length) {
      code |= static_cast<int>(held_ >> (length - 1) & 1);
      const int count = of.count[length];
      if (code - first < count) {
        drop(length);
        return damaged_ ? -1 : of.symbols[index + code - first];
      }
      index += count, first = (first + count) << 1, code <<= 1;
    }
    return -1;
  }

  bool stored() {
    take(count_ & 7);
    const uint32_t bytes = take(16), check = take(16);
    if (damaged_ || (bytes ^ check) != 0xffff || bytes > size_ - made_) return false;
    for (uint32_t i = 0; i < bytes; ++i) to_[made_++] = static_cast<uint8_t>(take(8));
    return !damaged_;
  }

  bool fixed() {
    uint8_t lengths[288];
    memset(lengths, 8, 144), memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24), memset(lengths + 280, 8, 8);
    literals_.assign(lengths, 288);
    memset(lengths, 5, 30);
    distances_.assign(lengths, 30);
    return block();
  }

  bool dynamic() {
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    const int literals = 257 + static_cast<int>(take(5)), distances = 1 + static_cast<int>(take(5));
    const int coded = 4 + static_cast<int>(take(4));
    uint8_t lengths[288 + 32] = {};
    for (int i = 0; i < coded; ++i) lengths[order[i]] = static_cast<uint8_t>(take(3));
    if (literals > 286 || distances > 30 || !literals_.assign(lengths, 19)) return false;
    memset(lengths, 0, 19);
    for (int i = 0; i < literals + distances;) {
      const int found = symbol(literals_);
      if (found < 0 || (found == 16 && !i)) return false;
      if (found < 16) {
        lengths[i++] = static_cast<uint8_t>(found);
        continue;
      }
      const uint8_t value = found == 16 ? lengths[i - 1] : 0;
      const uint32_t run = found == 16 ? 3 + take(2) : found == 17 ? 3 + take(3) : 11 + take(7);
      if (i + static_cast<int>(run) > literals + distances) return false;
      memset(lengths + i, value, run), i += static_cast<int>(run);
    }
    return literals_.assign(lengths, literals) && distances_.assign(lengths + literals, distances) &&
           block();
  }

  // Literals, and copies of what was made before, up to the end of the block.
  bool block() {
    for (;;) {
      const int found = symbol(literals_);
      if (found < 0 || found > 285) return false;
      if (found == 256) return true;
      if (found < 256) {
        if (made_ == size_) return false;
        to_[made_++] = static_cast<uint8_t>(found);
        continue;
      }
      const int64_t length = found == 285 ? 258 : 3 + scaled(found - 257, 4);
      const int which = symbol(distances_);
      if (which < 0 || which > 29) return false;
      const int64_t distance = 1 + scaled(which, 2);
      if (damaged_ || distance > made_ || length > size_ - made_) return false;
      uint8_t* to = to_ + made_;
      made_ += length;
      for (int64_t i = 0; i < length; ++i) to[i] = to[i - distance];
    }
  }

  // The number of a length or distance code: `steps` codes of each power of two, and extra bits.
  int64_t scaled(int code, int steps) {
    if (code < 2 * steps) return code;
    const int extra = code / steps - 1;
    return (static_cast<int64_t>(steps + code % steps) << extra) + take(extra);
  }

  uint32_t checksum() const {  // Adler-32
    uint32_t a = 1, b = 0;
    for (int64_t i = 0; i < size_;) {
      const int64_t end = size_ - i < 5552 ? size_ : i + 5552;  // as far as 32 bits hold the sums
      for (; i < end; ++i) a += to_[i], b += a;
      a %= 65521, b %= 65521;
    }
    return b << 16 | a;
  }

  const uint8_t *at_, *end_;
  uint8_t* to_;
  int64_t size_, made_;
  uint64_t held_;  // bits that were read ahead, the next one lowest
  int count_;      // number of them
  bool damaged_;   // more bits were taken than there are
  HuffmanCode literals_, distances_;
};

}  // namespace tracea
