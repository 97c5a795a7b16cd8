// Reads rows, columns, depth and threads of products; prints for each the chunks of rows and the
// tasks that a team divides it into, with register tiles of three panels and the policy's schedules.
#include <stdio.h>

#include "runtime/gemm.h"

int main() {
  long long m, n, k, threads;
  int count = 0;
  if (scanf("%d", &count) != 1) return 1;
  tracea::GemmSchedule schedules[8];
  for (int i = 0; i < count; ++i) {
    tracea::GemmSchedule& s = schedules[i];
    if (scanf("%d %d %d %d %d", &s.max_rows, &s.nr_panels, &s.mc, &s.nc, &s.prefetch) != 5) return 1;
  }
  tracea::Call call = {};
  call.gemm_schedules = schedules, call.schedule_count = count;
  while (scanf("%lld %lld %lld %lld", &m, &n, &k, &threads) == 4) {
    tracea::GemmJob job = {};
    job.items = 1, job.m = m, job.n = n, job.k = k, job.nv = 3;
    divide_work(job, choose_gemm_schedule(call, m), tracea::team_share(threads));
    printf("%lld %lld\n", static_cast<long long>(job.chunks),
           static_cast<long long>(job.chunks * job.groups));
  }
}
