// The binary contract between the library's runtime (plans, host loops, threads) and its
// micro-kernels (arithmetic).  Kernels see pointers, sizes and strides; never ONNX Runtime.
//
// Conventions: strides count elements, not bytes.  Pointers need only element alignment.
// A kernel touches nothing outside the rows and columns it is given (masked tails), except the
// weight panels, which are padded to 16 columns.  Kernels keep no state: any number of threads may
// run one kernel at once.  Results do not depend on how a problem is cut into tiles.
//
// What a kernel is handed is declared by what it goes through.
#pragma once
#include "tracea_images.h"
#include "tracea_products.h"
#include "tracea_rows.h"
