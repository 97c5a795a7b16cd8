// The generated table of one library: domain, op types, kernels and their images.
#pragma once
#include <stdint.h>

#include "runtime/op_type.h"

// A kernel for one architecture: a cubin, or PTX that the driver compiles for later ones, stored as
// a zlib stream.  Empty if the architecture cannot run the kernel.
struct tracea_gpu_image {
  int64_t offset, stored;  // where the stream lies, and its bytes
  int64_t bytes;           // of the image
  const char* symbol;
};

struct tracea_gpu_kernel {
  int64_t key;
  const tracea_gpu_image* images;  // one for each level
};

struct tracea_gpu_level {
  int32_t capability;  // 90 is 9.0
  int32_t exact;       // runs on exactly this capability
  int32_t text;        // PTX
};

// A function of tracea.h for an element type, form of its operands and activation: its plan, see
// kernels/gpu/standalone_functions.py.
struct tracea_gpu_function {
  int32_t op, type, form, activation;
  int64_t count;
  const int64_t* words;
};

struct tracea_gpu_library {
  const char* domain;
  int32_t driver;  // least driver version in CUDA's encoding, such as 13000
  int32_t level_count, type_count, kernel_count;
  const tracea_gpu_level* levels;    // in ascending order; the last one that a device can run is used
  const tracea_op_type* types;
  const tracea_gpu_kernel* kernels;  // sorted by key
  int32_t function_count;
  const tracea_gpu_function* functions;
};

extern "C" const tracea_gpu_library tracea_gpu_table;
extern "C" const unsigned char tracea_gpu_images[];
