"""Measure what data costs that another core has written: ``python -m models.lines_between_cores``.

Every thread reads or writes 297 KB that itself or its neighbour wrote just before, as a team's
tasks do from call to call: whole, or 128 of every 4608 bytes, as attention reads rows of q, k and
v.  One thread alone has no neighbour: other caches are replaced by its own that it emptied, so
that lines come from L3 or memory.  Printed are GB/s a thread, the median and the slowest thread's,
and the clock, from multiplications of which each waits for the one before.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

__all__ = ["compile_program", "main"]

_SOURCE = r"""
#include <algorithm>
#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include <time.h>
#include <vector>
typedef float V __attribute__((vector_size(64)));
constexpr size_t kBytes = 66 * 4608, kEmptied = 8 << 20, kRounds = 9;
constexpr long kChain = 1 << 25;
constexpr double kLatency = 3;  // cycles of a multiplication
struct Way { const char* name; bool own, rows, writes; };
const Way kWays[] = {{"read own", true, false, false},  {"read another's", false, false, false},
                     {"rows of own", true, true, false}, {"rows of another's", false, true, false},
                     {"write own", true, false, true},  {"write another's", false, false, true}};
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static volatile float sink;
static void read(const char* p, size_t bytes) {
  V sum = {};
  for (size_t i = 0; i < bytes; i += 64) sum += *reinterpret_cast<const V*>(p + i);
  sink = sum[0];
}
static void rows(const char* p) {
  V sum = {};
  for (size_t i = 0; i < kBytes; i += 4608)
    sum += *reinterpret_cast<const V*>(p + i) + *reinterpret_cast<const V*>(p + i + 64);
  sink = sum[0];
}
static void write(char* p) {
  for (size_t i = 0; i < kBytes; i += 64) {
    V one = {1};
    asm volatile("" : "+x"(one));
    *reinterpret_cast<V*>(p + i) = one;
  }
}
static double clock_ghz() {
  uint64_t a = 3;
  const double start = now();
  for (long i = 0; i < kChain; ++i) {
    a *= a;
    asm volatile("" : "+r"(a));
  }
  return kLatency * kChain / (now() - start) * 1e-9;
}
static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
static void measure(const std::vector<int>& cpus, int n) {
  char* data = static_cast<char*>(aligned_alloc(4096, n * kBytes));
  std::atomic<int> at{0};
  std::vector<double> clock(n), rate[6];
  for (auto& r : rate) r.resize(n);
  const auto work = [&](int i) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[i], &set);
    sched_setaffinity(0, sizeof set, &set);
    int round = 0;
    const auto together = [&] {
      for (at.fetch_add(1), ++round; at.load() < n * round;) sched_yield();
    };
    char* others = static_cast<char*>(aligned_alloc(4096, kEmptied));
    char* own = data + i * kBytes;
    memset(others, 1, kEmptied);
    memset(own, 1, kBytes);
    together();
    clock[i] = clock_ghz();
    for (int w = 0; w < 6; ++w) {
      const Way& way = kWays[w];
      std::vector<double> found;
      for (size_t r = 0; r < kRounds; ++r) {
        together();
        write(data + (way.own ? i : (i + 1) % n) * kBytes);
        if (!way.own && n == 1) read(others, kEmptied);
        together();
        const double start = now();
        if (way.writes) write(own);
        else if (way.rows) rows(own);
        else read(own, kBytes);
        found.push_back((way.rows ? kBytes / 36 : kBytes) / (now() - start) * 1e-9);
      }
      rate[w][i] = median(found);
    }
    free(others);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back(work, i);
  for (auto& t : threads) t.join();
  free(data);
  const auto least = [](const auto& v) { return *std::min_element(v.begin(), v.end()); };
  printf("%d threads: clock %.2f (%.2f) GHz", n, median(clock), least(clock));
  for (int w = 0; w < 6; ++w)
    printf(", %s %.1f (%.1f)", kWays[w].name, median(rate[w]), least(rate[w]));
  printf("\n");
}
int main() {
  cpu_set_t set;
  std::vector<int> cpus;
  sched_getaffinity(0, sizeof set, &set);
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  const int count = static_cast<int>(cpus.size());
  for (int n = 1; n < count; n *= 2) measure(cpus, n);
  measure(cpus, count);
}
"""


def compile_program(folder: Path) -> Path:
    """Return the path of the program, compiled for this machine."""
    source, program = folder / "lines.cpp", folder / "lines"
    source.write_text(_SOURCE, encoding="utf-8")
    command = ["g++", "-std=c++17", "-O2", "-march=native", "-pthread"]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    return program


def main() -> None:
    """Compile for this machine, run, and print."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([compile_program(Path(folder))], check=True)


if __name__ == "__main__":
    main()
