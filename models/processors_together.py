"""Measure what all processors do at once of what one does alone.

``python -m models.processors_together``: sums in registers only, so neither caches nor memory take
part.  What is missing at N threads is missing for every program: threads that share a core, or a
host that gives the guest less.  A first line has one processor, then some of them at a time.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

__all__ = ["main"]

_SECONDS = 0.2
_SOURCE = r"""
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef float V __attribute__((vector_size(WIDTH)));
static int ready, go, stop;
struct Thread { int cpu; double rate; pthread_t id; };
static double now() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static void* work(void* usr) {
  Thread* self = (Thread*)usr;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(self->cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
  V a = {}, b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;
  const V m = a + 0.999f, n = a + 0.001f;
  __atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
  while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE)) {}
  long rounds = 0;
  const double begin = now();
  for (; !__atomic_load_n(&stop, __ATOMIC_RELAXED); ++rounds)
    for (int r = 0; r < 1000; ++r) {
      a = a * m + n, b = b * m + n, c = c * m + n, d = d * m + n, e = e * m + n, f = f * m + n;
      g = g * m + n, h = h * m + n, i = i * m + n, j = j * m + n, k = k * m + n, l = l * m + n;
    }
  self->rate = rounds * 1000.0 * 24 * (WIDTH / 4) / (now() - begin) * 1e-9;
  V sum = a + b + c + d + e + f + g + h + i + j + k + l;
  if (sum[0] == 123) self->rate = 0;
  return 0;
}
int main(int, char** argv) {
  cpu_set_t set;
  int cpus[CPU_SETSIZE], count = 0;
  sched_getaffinity(0, sizeof set, &set);
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cpus[count++] = i;
  double one = 0;
  for (int n = 1;; n = 2 * n < count ? 2 * n : count) {
    Thread threads[CPU_SETSIZE];
    ready = go = stop = 0;
    for (int i = 0; i < n; ++i) {
      threads[i] = {cpus[i], 0, 0};
      pthread_create(&threads[i].id, 0, work, &threads[i]);
    }
    while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < n) sched_yield();
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    const double seconds = atof(argv[1]);
    const timespec time = {(long)seconds, (long)((seconds - (long)seconds) * 1e9)};
    nanosleep(&time, 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    double sum = 0;
    for (int i = 0; i < n; ++i) pthread_join(threads[i].id, 0), sum += threads[i].rate;
    if (n == 1) one = sum, printf("one processor: %.0f Gflop/s\n", one);
    else printf("%d at once: %.2f of one:", n, sum / one);
    for (int i = 0; n > 1 && i < n; ++i) printf(" %.2f", threads[i].rate / one);
    if (n > 1) printf("\n");
    if (n == count) break;
  }
}
"""


def main() -> None:
    """Compile for this machine, run, and print."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "together.cpp"), Path(folder, "together")
        wide = "__AVX512F__" in subprocess.run(
            ["g++", "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        source.write_text(_SOURCE, encoding="utf-8")
        command = ["g++", "-O2", "-march=native", "-ffp-contract=fast", "-pthread"]
        command += [f"-DWIDTH={64 if wide else 32}", str(source), "-o", str(program)]
        subprocess.run(command, check=True)
        subprocess.run([str(program), str(_SECONDS)], check=True)


if __name__ == "__main__":
    main()
