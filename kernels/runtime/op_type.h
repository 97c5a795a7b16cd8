// A custom-op type, as the generated table of every backend's library lists it.
#pragma once
#include <stdint.h>

typedef struct {
  const char* name;         // "FusedGemm_3f2a91"
  int32_t inputs, outputs;
  const int32_t* elements;  // ONNX element codes of inputs, then of outputs
} tracea_op_type;
