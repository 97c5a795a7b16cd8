/* c = relu(a b + bias) through tracea.h, and what a refusal looks like. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tracea.h>

enum { M = 5, K = 7, N = 6 };

static int failed(const char* what) {
  char why[TRACEA_MAX_ERROR];
  tracea_get_last_error(why, sizeof why);
  printf("%s: %s\n", what, why);
  return 1;
}

int main(void) {
  float a[M * K], b[K * N], bias[N], c[M * N];
  int64_t columns[1] = {N};
  TraceaTensorView va = tracea_matrix(a, M, K), vb = tracea_matrix(b, K, N);
  TraceaTensorView vc = tracea_matrix(c, M, N), row = tracea_dense(bias, TRACEA_F32, 1, columns);
  TraceaGemmParams params = TRACEA_GEMM_PARAMS_INIT;
  TraceaPrepared* packed = NULL;
  int i, j, k, turn;
  if (tracea_version() >> 16 != TRACEA_ABI_MAJOR) return 2;
  for (i = 0; i < M * K; ++i) a[i] = (float)(i % 5 - 2);
  for (i = 0; i < K * N; ++i) b[i] = (float)(i % 7 - 3);
  for (i = 0; i < N; ++i) bias[i] = (float)i;
  params.activation = TRACEA_RELU;
  for (turn = 0; turn < 2; ++turn) {
    memset(c, 0, sizeof c);
    if (turn == 0 && tracea_gemm(&va, &vb, &row, &vc, &params, NULL)) return failed("gemm");
    if (turn == 1 && tracea_prepare_gemm(&vb, &row, &params, &packed)) return failed("prepare");
    if (turn == 1 && tracea_run_prepared(packed, &va, &vc, NULL)) return failed("packed");
    for (i = 0; i < M; ++i)
      for (j = 0; j < N; ++j) {
        float sum = bias[j];
        for (k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
        if (fabsf(c[i * N + j] - (sum > 0 ? sum : 0)) > 1e-5f) return 3;
      }
  }
  tracea_release_prepared(packed);
  va.shape[1] = K + 1; /* no longer a product */
  if (tracea_gemm(&va, &vb, NULL, &vc, NULL, NULL) != TRACEA_INVALID_PARAMS) return 4;
  failed("refused");
  tracea_clear_error();
  if (tracea_get_last_error(NULL, 0)) return 5;
  va = tracea_matrix(a, M, K), va.device_id = 0;
  if (tracea_gemm(&va, &vb, NULL, &vc, NULL, NULL) != TRACEA_UNSUPPORTED_CONFIG) return 6;
  tracea_trim();
  printf("%s\n", tracea_isa());
  return 0;
}
