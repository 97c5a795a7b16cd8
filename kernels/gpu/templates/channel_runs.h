// Adjacent channels as numbers: ${run} of them as one vector, or a single one; zeros where nothing is `there`.
namespace tracea {

constexpr i32 RUN = ${run};
typedef packed<${element}, RUN> channel_run;

DEV void read_numbers(float (&to)[RUN], const ${element}* p, bool there = true) {
  channel_run all = {};
  if (there) all = *(const channel_run*)p;
  numbers(to, all);
}
DEV void read_numbers(float (&to)[1], const ${element}* p, bool there = true) { to[0] = there ? number(*p) : 0.0f; }
DEV void write_numbers(${element}* p, const float (&x)[RUN]) {
  channel_run all;
  UNROLL
  //% if element == "float"
  for (i32 j = 0; j < RUN; j++) all.words[j] = float_bits(x[j]);
  //% else
  for (i32 j = 0; j < RUN; j += 2) all.words[j / 2] = ${element}_pair(x[j], x[j + 1]);
  //% endif
  *(channel_run*)p = all;
}
DEV void write_numbers(${element}* p, const float (&x)[1]) { assign(*p, x[0]); }

// Whether all vectors of channels are whole and aligned; `steps` joins the bits of strides and of their number.
DEV bool in_vectors(i32 steps, const ${element}* x, const ${element}* y) {
  return steps % RUN == 0 && ((u64)x | (u64)y) % 16 == 0;
}

}  // namespace tracea
