namespace tracea {

// Copies a tile of ROWS by RUNS runs of 16 bytes; what is outside the matrix becomes zero.  Rows
// that do not lie in whole runs are gathered by elements.
template <typename T, int ROWS, int RUNS, typename PLACE>
DEV void copy_tile(u8* to, PLACE place, const T* from, i32 step, i32 along, i32 first, i32 rows,
                   i32 start, i32 length, bool fast) {
  constexpr i32 PER = 16 / sizeof(T);
  UNROLL
  for (i32 i = 0; i < (ROWS * RUNS + ${threads - 1}) / ${threads}; i++) {
    const i32 at = i * ${threads} + thread(), row = at / RUNS, piece = at % RUNS;
    if (ROWS * RUNS % ${threads} && at >= ROWS * RUNS) break;
    const i32 col = start + piece * PER;
    i32 count = first + row < rows ? least(PER, length - col) : 0;
    if (count < 0) count = 0;
    const T* source = from + (i64)(first + row) * step + (i64)col * along;
    if (fast) {
      copy_async(to + place(row, piece), count ? source : from, count * (i32)sizeof(T));
    } else {
      run<T, PER> v;
      UNROLL
      for (i32 j = 0; j < PER; j++) v.at[j] = j < count ? source[(i64)j * along] : T();
      *(run<T, PER>*)(to + place(row, piece)) = v;
    }
  }
}
template <typename T>
DEV bool in_runs(const T* p, i32 step, i32 along) {
  return along == 1 && (u64)p % 16 == 0 && step % (16 / (i32)sizeof(T)) == 0;
}

}  // namespace tracea
