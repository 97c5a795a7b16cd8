// 2:4 sparse products of a warp (mma.sp) in the CUDA dialect.
namespace tracea {

// 32 steps, of each four of which a has two; lanes 4i + 2 HALF and the next hold their positions
// (see two_of_four_storage.py).
template <int HALF>
DEV void multiply_sparse(float (&d)[4], const u32 (&a)[4], const u32 (&b)[4], u32 positions) {
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.${kind}.${kind}.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(positions), "n"(HALF));
}

}  // namespace tracea
