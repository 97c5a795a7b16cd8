// Reads lines of numbers: followers, rounds, seed, microseconds that followers come late,
// microseconds that task 0 of every call takes.  Each round links calls that divide as many rows in
// ways drawn at random; a task adds up, for each of its rows or for all, what all tasks of the call
// before wrote of it.  Prints for each line how many sums were wrong, and how many tasks ran in all.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <random>
#include <vector>

#include "runtime/team.h"

namespace {

void rest(int microseconds) {
  const timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000L};
  if (microseconds) nanosleep(&time, nullptr);
}

struct Follower {
  tracea::Team* team;
  int late;
};

void* follow(void* usr) {
  Follower& self = *static_cast<Follower*>(usr);
  rest(self.late);
  self.team->follow();
  return nullptr;
}

// A call writes `rows.per_step` numbers of each row: plain, so that a race is the sanitizer's to find.
struct Call {
  tracea::RowTasks rows;
  const Call* before;
  std::vector<int> written, runs;
  int wanted, first;
  long wrong;
};

void task(void* usr, size_t index) {
  Call& call = *static_cast<Call*>(usr);
  const int64_t i = static_cast<int64_t>(index), width = call.rows.per_step, step = i / width;
  if (!i) rest(call.first);
  ++call.runs[index];
  const auto check = [&](int64_t row) {
    int sum = 1;
    const int64_t read = call.before ? call.before->rows.per_step : 0;
    for (int64_t k = 0; k < read; ++k)
      sum += call.before->written[static_cast<size_t>(row * read + k)];
    if (sum != call.wanted) __atomic_fetch_add(&call.wrong, 1, __ATOMIC_RELAXED);
  };
  for (int64_t row = 0; call.rows.all && row < call.rows.rows; ++row) check(row);
  for (int64_t row = call.rows.begin(step); row < call.rows.begin(step + 1); ++row) {
    check(row);
    call.written[static_cast<size_t>(row * width + i % width)] = 1;
  }
}

}  // namespace

int main() {
  int followers, rounds, seed, late, first;
  while (scanf("%d %d %d %d %d", &followers, &rounds, &seed, &late, &first) == 5) {
    tracea::Team team(followers + 1);
    std::vector<Follower> selves(static_cast<size_t>(followers), {&team, late});
    std::vector<pthread_t> threads(static_cast<size_t>(followers));
    for (int i = 0; i < followers; ++i) pthread_create(&threads[i], nullptr, follow, &selves[i]);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
    long wrong = 0, ran = 0;
    for (int round = 0; round < rounds; ++round) {
      const int64_t rows = draw(100), count = draw(tracea::kMaxLinked);
      std::vector<Call> calls(static_cast<size_t>(count));
      for (Call& call : calls) {
        const int64_t each = random() % 2 ? draw(rows) : 0;
        const int64_t steps = each ? (rows + each - 1) / each : draw(rows);
        call.rows = {rows, steps, draw(6), each, random() % 4 == 0};
        call.before = &call == &calls[0] ? nullptr : &call - 1;
        call.wanted = call.before ? 1 + static_cast<int>(call.before->rows.per_step) : 1;
        call.first = first, call.wrong = 0;
        call.written.assign(static_cast<size_t>(rows * call.rows.per_step), 0);
        call.runs.assign(static_cast<size_t>(call.rows.steps * call.rows.per_step), 0);
        team.link(call.rows, call.before ? &call.before->rows : nullptr, task, &call);
      }
      team.finish_linked();
      for (const Call& call : calls) {
        wrong += call.wrong, ran += static_cast<long>(call.runs.size());
        for (const int times : call.runs) wrong += times != 1;
        for (const int one : call.written) wrong += one != 1;
      }
      if (round % 3 == 0) {  // a call with a barrier in between
        Call alone = {{rows, rows, 1, 1}, nullptr, std::vector<int>(static_cast<size_t>(rows)),
                      std::vector<int>(static_cast<size_t>(rows)), 1, 0, 0};
        team.share(rows, task, &alone);
        for (const int times : alone.runs) wrong += times != 1;
      }
    }
    team.end();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    printf("%ld %ld\n", wrong, ran);
  }
}
