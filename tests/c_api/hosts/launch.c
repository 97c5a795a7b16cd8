/* The host flow of tsr.h: context, module, kernel, stream, memory, launch.
 * launch LIBRARY [DEVICE]: on the CPU, or the GPU of that number. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tsr.h>

enum { M = 4, K = 8, N = 6 };

static int failed(const char* what) {
  char why[TRACEA_MAX_ERROR];
  tsrGetLastError(why, sizeof why);
  printf("%s: %s\n", what, why);
  return 1;
}

int main(int argc, char** argv) {
  float a[M * K], b[K * N], c[M * N];
  void *da, *db, *dc;
  TsrContext* context;
  TsrModule* module;
  TsrKernel* gemm;
  TsrStream* stream;
  TraceaTensorView views[4];
  TraceaGemmParams params = TRACEA_GEMM_PARAMS_INIT;
  int i, j, k, device;
  if (argc < 2) return 2;
  device = argc > 2 ? atoi(argv[2]) : TRACEA_CPU;
  if (tsrCreateContext(TSR_ABI_VERSION + 1, device, &context) != TRACEA_UNSUPPORTED_CONFIG) return 3;
  failed("newer");
  if (tsrCreateContext(TSR_ABI_VERSION, device, &context)) return failed("context");
  if (tsrLoadModule(context, argv[1], &module)) return failed("module");
  if (tsrGetKernel(module, "gemm", &gemm)) return failed("kernel");
  if (tsrCreateStream(context, &stream)) return failed("stream");
  for (i = 0; i < M * K; ++i) a[i] = (float)(i % 5 - 2);
  for (i = 0; i < K * N; ++i) b[i] = (float)(i % 7 - 3);
  if (tsrAlloc(context, sizeof a, &da) || tsrAlloc(context, sizeof b, &db) ||
      tsrAlloc(context, sizeof c, &dc))
    return failed("memory");
  if (tsrCopyToDevice(stream, da, a, sizeof a) || tsrCopyToDevice(stream, db, b, sizeof b))
    return failed("copy");
  memset(views, 0, sizeof views); /* no bias */
  views[0] = tracea_matrix(da, M, K), views[1] = tracea_matrix(db, K, N);
  views[3] = tracea_matrix(dc, M, N);
  views[0].device_id = views[1].device_id = views[3].device_id = device;
  params.activation = TRACEA_RELU;
  if (tsrLaunch(gemm, stream, views, 4, &params) || tsrSynchronize(stream)) return failed("launch");
  if (tsrCopyToHost(stream, c, dc, sizeof c) || tsrSynchronize(stream)) return failed("copy back");
  for (i = 0; i < M; ++i)
    for (j = 0; j < N; ++j) {
      float sum = 0;
      for (k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
      if (fabsf(c[i * N + j] - (sum > 0 ? sum : 0)) > 1e-5f) return 4;
    }
  views[0].shape[1] = K + 1;
  if (tsrLaunch(gemm, stream, views, 4, NULL) != TRACEA_INVALID_PARAMS) return 5;
  failed("shapes");
  if (tsrLaunch(gemm, stream, views, 2, NULL) != TRACEA_INVALID_PARAMS) return 6;
  if (tsrDestroyContext(context) != TRACEA_INVALID_PARAMS) return 7;
  failed("in use");
  printf("%s\n", tsrModuleIsa(module));
  if (tsrFree(context, da) || tsrFree(context, db) || tsrFree(context, dc)) return 8;
  if (tsrDestroyStream(stream) || tsrUnloadModule(module) || tsrDestroyContext(context)) return 9;
  if (tsrCreateContext(TSR_ABI_VERSION, 99, &context) != TRACEA_UNSUPPORTED_CONFIG) return 10;
  failed("device");
  return 0;
}
