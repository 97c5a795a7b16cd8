#include "tracea_kernels.h"

#ifndef TRACEA_VISIBILITY
#define TRACEA_VISIBILITY "hidden"
#endif
#define TRACEA_API extern "C" __attribute__((visibility(TRACEA_VISIBILITY)))
#define INLINE static inline __attribute__((always_inline, unused))
#define INLINE_MEMBER inline __attribute__((always_inline))
//% if vectors_of | default(isa) == "neon"
//% set integers = dict(neondot="dotprod", neoni8mm="dotprod+i8mm")
//% set extensions = dict(integers, neonbf16="dotprod+i8mm+bf16", neonfp16="dotprod+fp16")
//% if isa in extensions
#if defined(__GNUC__) && !defined(__clang__)
// gcc's -mcpu=generic stays at Armv8.0, which none of these extends.
#pragma GCC target("arch=armv8.2-a+${extensions[isa]}")
#endif
//% endif
#include <arm_neon.h>
//% elif isa != "scalar"
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 finds fault with the deliberately undefined operands in its own header.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
//% endif

// Everything below is local to this file: no code built for one instruction set may be merged
// into another's.
namespace {
//% include "vec_" ~ vectors_of | default(isa) ~ ".h"
//% if needs

//% include "vec_math.h"
//% endif
