// Aligned vectors of 16 bytes that hold elements of rows which start anywhere: read from the one or two vectors of
// the source that hold them, and written as a whole or, at the ends of a row, in pieces.
namespace tracea {

template <typename T>
using window = packed<T, 16 / sizeof(T)>;

DEV u32 chosen(bool second, u32 a, u32 b) { return second ? b : a; }
DEV u32 funnel(u32 low, u32 high, i32 bits) { return (u32)(((u64)high << 32 | low) >> bits); }
// The vectors that hold elements from p on, and how many bytes p is behind the first one's start.
template <typename T>
struct window_pair {
  window<T> low, high;
  i32 late;
};
// p[0] to p[16 / sizeof(T) - 1], of which those from `begin` to `end`, at least one, are read; others are undefined.
template <typename T>
DEV window_pair<T> load_pair(const T* p, i32 begin, i32 end) {
  const i32 late = (i32)((u64)p & 15);
  const window<T>* const from = (const window<T>*)((const u8*)p - late);
  // a vector without a wanted element is not read, but the other one in its place
  const i32 low = begin * (i32)sizeof(T) < 16 - late ? 0 : 1, high = end * (i32)sizeof(T) > 16 - late ? 1 : 0;
  return {from[low], from[high], late};
}
// The 16 bytes of two vectors that begin `late`.
template <typename T>
DEV window<T> window_of(const window<T>& low, const window<T>& high, i32 late) {
  window<T> made;
  const auto& l = low.words;
  const auto& h = high.words;
  // words from the pair on in which p starts, from the word on, and from the byte on
  const bool pair = late & 8, odd = late & 4;
  const u32 a = chosen(pair, l[0], l[2]), b = chosen(pair, l[1], l[3]), c = chosen(pair, l[2], h[0]);
  const u32 d = chosen(pair, l[3], h[1]), e = chosen(pair, h[0], h[2]), f = chosen(pair, h[1], h[3]);
  const u32 first = chosen(odd, a, b), second = chosen(odd, b, c), third = chosen(odd, c, d);
  const u32 fourth = chosen(odd, d, e), fifth = chosen(odd, e, f);
  const i32 bits = sizeof(T) < 4 ? late % 4 * 8 : 0;
  made.words[0] = funnel(first, second, bits);
  made.words[1] = funnel(second, third, bits);
  made.words[2] = funnel(third, fourth, bits);
  made.words[3] = funnel(fourth, fifth, bits);
  return made;
}
// The elements of `load_pair`.
template <typename T>
DEV window<T> load_window(const T* p, i32 begin, i32 end) {
  const window_pair<T> held = load_pair(p, begin, end);
  return held.late ? window_of<T>(held.low, held.high, held.late) : held.low;
}
// Stores the elements from `begin` to `end` at an aligned p.
template <typename T>
DEV void store_window(T* p, window<T> v, i32 begin, i32 end) {
  constexpr i32 COUNT = 16 / sizeof(T);
  const u32 a = v.words[0], b = v.words[1], c = v.words[2], d = v.words[3];  // values, for registers have no address
  if (begin <= 0 && end >= COUNT) {
    //% if dialect == "cuda"
    // of four stores, which the assignment becomes, NVRTC makes no vector here
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    //% else
    *(window<T>*)p = v;
    //% endif
    return;
  }
  auto word = [=](i32 i) { return chosen(i & 2, chosen(i & 1, a, b), chosen(i & 1, c, d)); };
  const bool ends = begin <= 0, both = !ends && end < COUNT;  // a row that ends, one that begins and ends
  // pieces of 8, 4, 2 bytes and one byte from the middle of the row on; where both ends are inside, elements
  const i32 size = (i32)sizeof(T) * (ends ? end : COUNT - begin);
  UNROLL
  for (i32 piece = 8; piece >= (i32)sizeof(T); piece /= 2) {
    if (both || !(size & piece)) continue;
    const i32 done = size & (16 - 2 * piece), at = ends ? done : 16 - done - piece;
    u8* const to = (u8*)p + at;
    const u32 first = word(at / 4);
    if (piece == 8) *(u64*)to = (u64)word(at / 4 + 1) << 32 | first;
    if (piece == 4) *(u32*)to = first;
    if (piece == 2) *(u16*)to = (u16)(first >> at % 4 * 8);
    if (piece == 1) *to = (u8)(first >> at % 4 * 8);
  }
  if (!both) return;
  UNROLL
  for (i32 j = 0; j < COUNT; j++) {
    if (j < begin || j >= end) continue;
    const i32 at = j * (i32)sizeof(T);
    u8* const to = (u8*)p + at;
    if (sizeof(T) == 8) *(u64*)to = (u64)v.words[(at / 4 + 1) % 4] << 32 | v.words[at / 4];
    if (sizeof(T) == 4) *(u32*)to = v.words[at / 4];
    if (sizeof(T) == 2) *(u16*)to = (u16)(v.words[at / 4] >> at % 4 * 8);
    if (sizeof(T) == 1) *to = (u8)(v.words[at / 4] >> at % 4 * 8);
  }
}

}  // namespace tracea
