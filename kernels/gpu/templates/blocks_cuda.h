// Stores of matrix fragments (stmatrix) in the CUDA dialect, for sm_90a.
namespace tracea {

// Stores four 8 x 8 blocks whose transposes the fragments hold; lane 8 i + j gives row j of block i.
DEV void store_blocks_turned(void* p, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(p)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace tracea
