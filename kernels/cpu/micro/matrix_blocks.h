// Sums of a tile in blocks of two rows by two columns, one to a vector, to which instructions that
// multiply matrices (USMMLA, BFMMLA) add: of each of two rows eight bytes, of each of two columns
// eight bytes.  An odd last row is there twice.
template <class V>
INLINE V low_halves(V a, V b) { return (V)vzip1q_s64((int64x2_t)a, (int64x2_t)b); }
template <class V>
INLINE V high_halves(V a, V b) { return (V)vzip2q_s64((int64x2_t)a, (int64x2_t)b); }

// STEP::add_block(x, w, sum) adds a product to a block.
template <class STEP, class V, int MR, int VECTORS>
struct Blocks {
  enum { PAIRS = (MR + 1) / 2 };
  V sums[PAIRS][2 * VECTORS];

  INLINE_MEMBER explicit Blocks(const V (&c)[MR][VECTORS]) {
    UNROLL for (int i = 0; i < PAIRS; i++) UNROLL for (int j = 0; j < VECTORS; j++) {
      sums[i][2 * j] = low_halves(c[2 * i][j], c[second(i)][j]);
      sums[i][2 * j + 1] = high_halves(c[2 * i][j], c[second(i)][j]);
    }
  }
  static INLINE_MEMBER int second(int pair) { return 2 * pair + 1 < MR ? 2 * pair + 1 : MR - 1; }
  INLINE_MEMBER void write(V (&c)[MR][VECTORS]) const {
    UNROLL for (int i = 0; i < PAIRS; i++) UNROLL for (int j = 0; j < VECTORS; j++) {
      c[2 * i][j] = low_halves(sums[i][2 * j], sums[i][2 * j + 1]);
      if (2 * i + 1 < MR) c[second(i)][j] = high_halves(sums[i][2 * j], sums[i][2 * j + 1]);
    }
  }

  // Two lanes of 32 bits of each row of A, by two rows of B, `b_row` apart; row i of A is at `row(i)`.
  // Bits of A that are set in `flip` are inverted.
  template <class ROW>
  INLINE_MEMBER void add(const ROW& row, vi flip, const float* b, int64_t b_row, int64_t panel) {
    vi x[PAIRS];
    UNROLL for (int i = 0; i < PAIRS; i++)
      x[i] = (vi)vcombine_f32(vld1_f32(row(2 * i)), vld1_f32(row(second(i)))) ^ flip;
    UNROLL for (int j = 0; j < VECTORS; j++) {
      // in this order, which volatile keeps: no register is left to load ahead into
      __asm__ __volatile__("" ::: "memory");
      const float* from = b + j / P * panel + j % P * W;
      const vf first = load(from), next = load(from + b_row);
      const vf w[2] = {vzip1q_f32(first, next), vzip2q_f32(first, next)};
      UNROLL for (int h = 0; h < 2; h++) UNROLL for (int i = 0; i < PAIRS; i++)
        STEP::add_block(x[i], w[h], sums[i][2 * j + h]);
    }
  }
};
