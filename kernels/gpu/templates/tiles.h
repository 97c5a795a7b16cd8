namespace tracea {

// Copies a tile of ROWS by RUNS runs of 16 bytes; elements outside the matrix become zero.  Rows whose
// runs are not aligned are gathered element by element.
template <typename T, int ROWS, int RUNS, int PITCH, typename PLACE>
DEV void copy_tile(u8* to, PLACE place, const T* from, i32 step, i32 along, i32 first, i32 rows,
                   i32 start, i32 length, bool fast) {
  constexpr i32 PER = 16 / sizeof(T), DOWN = ${threads} / RUNS;
  const i32 row = thread() / RUNS, piece = thread() % RUNS, col = start + piece * PER;
  if (${threads} % RUNS && row >= DOWN) return;  // threads without a row
  i32 count = least(PER, length - col);
  if (count < 0) count = 0;
#if __CUDA_ARCH__ >= 800
  UNROLL
#else
  UNROLL_FOUR  // what is not copied asynchronously takes registers
#endif
  for (i32 i = 0; i < (ROWS + DOWN - 1) / DOWN; i++) {
    if (ROWS % DOWN && i * DOWN + row >= ROWS) break;
    // The swizzle repeats every 16 rows, so one offset serves all rows of this thread.
    u8* const at = DOWN % 16 ? to + place(row + i * DOWN, piece)
                             : to + place(row, piece) + i * DOWN * PITCH;
    const i32 n = first + row + i * DOWN < rows ? count : 0;
    const T* const source = from + ((first + row + i * DOWN) * step + col * along);
    if (fast) {
      copy_async(at, n ? source : from, n * (i32)sizeof(T));
    } else {
      run<T, PER> v;
      UNROLL
      for (i32 j = 0; j < PER; j++) v.at[j] = j < n ? source[(i64)j * along] : T();
      *(run<T, PER>*)at = v;
    }
  }
}
template <typename T>
DEV bool in_runs(const T* p, i32 step, i32 along) {
  return along == 1 && (u64)p % 16 == 0 && step % (16 / (i32)sizeof(T)) == 0;
}

}  // namespace tracea
