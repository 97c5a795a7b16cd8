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

  template <int LANES>
  static INLINE_MEMBER float32x2_t lanes(const float* p) {
    return LANES == 2 ? vld1_f32(p) : vld1_lane_f32(p, vdup_n_f32(0.0f), 0);
  }

  // Two lanes of 32 bits of each row of A, by two rows of B, `b_row` apart; row i of A is at `row(i)`.
  // Bits of A that are set in `flip` are inverted.  With LANES 1 the second lane and row are zero.
  template <int LANES = 2, class ROW>
  INLINE_MEMBER void add(const ROW& row, vi flip, const float* b, int64_t b_row, int64_t panel) {
    vi x[PAIRS];
    UNROLL for (int i = 0; i < PAIRS; i++)
      x[i] = (vi)vcombine_f32(lanes<LANES>(row(2 * i)), lanes<LANES>(row(second(i)))) ^ flip;
    UNROLL for (int j = 0; j < VECTORS; j++) {
      // in this order, which volatile keeps: no register is left to load ahead into
      __asm__ __volatile__("" ::: "memory");
      const float* from = b + j / P * panel + j % P * W;
      const vf first = load(from), next = LANES == 2 ? load(from + b_row) : set1(0.0f);
      const vf w[2] = {vzip1q_f32(first, next), vzip2q_f32(first, next)};
      UNROLL for (int h = 0; h < 2; h++) UNROLL for (int i = 0; i < PAIRS; i++)
        STEP::add_block(x[i], w[h], sums[i][2 * j + h]);
    }
  }
};
//% if isa == "neonbf16"

// Four steps of k in bf16.  BFMMLA adds and rounds as BFDOT of the first lanes and then of the second,
// so that tiles of one product may take either.
struct Bfmmla {
  static INLINE_MEMBER void add_block(vi x, vf w, vf& sum) {
    __asm__ __volatile__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(x), "w"(w));
  }
};

// From how many rows on it saves more than pairing the rows of A and of B costs.
enum { ROWS_IN_BLOCKS = 4 };

// c += a b over an even number of the lanes; returns how many.
template <int MR, int VECTORS>
INLINE int64_t multiply_in_blocks(vf (&c)[MR][VECTORS], const float* a, int64_t lda, const float* b,
                                  int64_t b_row, int64_t panel, int64_t lanes) {
  if constexpr (MR < ROWS_IN_BLOCKS) return 0;
  Blocks<Bfmmla, vf, MR, VECTORS> blocks(c);
  int64_t k = 0;
  for (; k + 2 <= lanes; k += 2, b += 2 * b_row)
    blocks.add([&](int i) { return a + k + i * lda; }, vi{}, b, b_row, panel);
  blocks.write(c);
  return k;
}
//% endif
