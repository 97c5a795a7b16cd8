// Element types, vectors of elements in memory, and division by launch-time constants.
namespace tracea {

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct f8 {  // e4m3: four bits of exponent, three of fraction, no infinities
  u8 bits;
};
struct f8e5 {  // e5m2: five bits of exponent, two of fraction
  u8 bits;
};
struct truth {
  u8 byte;
};
typedef float vf;
typedef bool vm;

// Rounds to e5m2, ties to even; what exceeds the range becomes its largest number.
DEV u8 f8e5_bits(float v) {
  const u32 sign = float_bits(v) >> 24 & 0x80;
  u32 u = float_bits(v) & 0x7fffffff;
  if (v != v) return 0x7f;
  if (u >= 0x47600000) return (u8)(sign | 0x7b);  // 57344
  if (u < 0x38800000)                             // below 2^-14 in steps of 2^-16
    return (u8)(sign | (float_bits(bits_float(u) + 128.0f) & 7));
  u += 0xfffff + (u >> 21 & 1);
  return (u8)(sign | ((u >> 21) - (112u << 2)));
}
#ifndef ROUNDS_TO_F8
// Rounds to e4m3, ties to even; what exceeds the range becomes its largest number.
DEV u8 f8_bits(float v) {
  const u32 sign = float_bits(v) >> 24 & 0x80;
  u32 u = float_bits(v) & 0x7fffffff;
  if (v != v) return 0x7f;
  if (u >= 0x43e00000) return (u8)(sign | 0x7e);  // 448
  if (u < 0x3c800000)                             // below 2^-6 in steps of 2^-9
    return (u8)(sign | (float_bits(bits_float(u) + 16384.0f) & 15));
  u += 0x7ffff + (u >> 20 & 1);
  return (u8)(sign | ((u >> 20) - (120u << 3)));
}
DEV u16 f8_pair(float low, float high) { return (u16)(f8_bits(low) | f8_bits(high) << 8); }
#endif

DEV float f8_number(u8 bits) {
  const u32 u = bits & 0x7f;
  const float v = u == 0x7f ? bits_float(0x7fc00000) : bits_float(u << 20) * bits_float(247u << 23);
  return bits & 0x80 ? -v : v;  // exponents differ by 120
}

DEV float f8e5_number(u8 bits) {
  const u32 u = bits & 0x7f;
  const float v = u < 0x7c ? bits_float(u << 21) * bits_float(239u << 23)  // exponents differ by 112
                           : bits_float(0x7f800000 | (u & 3) << 21);
  return bits & 0x80 ? -v : v;
}

DEV vf number(float v) { return v; }
DEV vf number(f16 v) { return f16_number(v.bits); }
DEV vf number(bf16 v) { return bf16_number(v.bits); }
DEV vf number(f8 v) { return f8_number(v.bits); }
DEV vf number(f8e5 v) { return f8e5_number(v.bits); }
DEV vf number(i8 v) { return (float)v; }
DEV vf number(u8 v) { return (float)v; }
DEV vf number(i32 v) { return (float)v; }
DEV vf number(i64 v) { return (float)v; }
DEV vm number(truth v) { return v.byte != 0; }

DEV void assign(float& to, vf v) { to = v; }
DEV void assign(f16& to, vf v) { to.bits = f16_bits(v); }
DEV void assign(bf16& to, vf v) { to.bits = bf16_bits(v); }
DEV void assign(f8& to, vf v) { to.bits = f8_bits(v); }
DEV void assign(f8e5& to, vf v) { to.bits = f8e5_bits(v); }
DEV void assign(i8& to, vf v) { to = (i8)v; }
DEV void assign(u8& to, vf v) { to = (u8)v; }
DEV void assign(i32& to, vf v) { to = (i32)v; }
DEV void assign(i64& to, vf v) { to = (i64)v; }
DEV void assign(truth& to, vm v) { to.byte = v; }

struct yes {
  static constexpr bool value = true;
};
struct no {
  static constexpr bool value = false;
};

DEV i32 least(i32 a, i32 b) { return a < b ? a : b; }

// V adjacent elements, loaded and stored as one vector if they are contiguous (`together`).
template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) run {
  T at[V];
};
// V elements as machine words, so that a select on the whole value stays in registers.
template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) packed {
  u32 words[V * sizeof(T) / 4];
};
template <int V>
DEV void numbers(float (&to)[V], const packed<float, V>& x) {
  UNROLL
  for (i32 j = 0; j < V; j++) to[j] = bits_float(x.words[j]);
}
template <int V>
DEV void numbers(float (&to)[V], const packed<f16, V>& x) {
  UNROLL
  for (i32 j = 0; j < V; j += 2) f16_numbers(x.words[j / 2], to[j], to[j + 1]);
}
template <int V>
DEV void numbers(float (&to)[V], const packed<bf16, V>& x) {
  UNROLL
  for (i32 j = 0; j < V; j++)
    to[j] = bits_float(j % 2 ? x.words[j / 2] & 0xffff0000u : x.words[j / 2] << 16);
}
template <typename T, int V>
DEV bool together(const T* p, i32 step, i32 n) {
  return n >= V && step == 1 && ((u64)p & (alignof(run<T, V>) - 1)) == 0;
}
template <typename T, int V>
DEV void load_run(T (&x)[V], const T* p, i32 step, i32 n, bool whole) {
  if (whole) {
    const run<T, V> all = *(const run<T, V>*)p;
    UNROLL
    for (i32 j = 0; j < V; j++) x[j] = all.at[j];
  } else {
    UNROLL
    for (i32 j = 0; j < V; j++) x[j] = j < n ? p[(i64)j * step] : T();
  }
}
template <typename T, int V>
DEV void store_run(T* p, const T (&x)[V], i32 step, i32 n, bool whole) {
  if (whole) {
    run<T, V> all;
    UNROLL
    for (i32 j = 0; j < V; j++) all.at[j] = x[j];
    *(run<T, V>*)p = all;
  } else {
    UNROLL
    for (i32 j = 0; j < V; j++)
      if (j < n) p[(i64)j * step] = x[j];
  }
}

// Magic-number division n / d for n < 2^31; a `multiply` of 0 means an ordinary division by d.
struct divisor {
  u32 value, multiply, shift;
};
DEV i32 quotient(i32 n, divisor d) {
  return d.multiply ? (i32)(high_product((u32)n, d.multiply) >> d.shift) : n;
}

}  // namespace tracea
