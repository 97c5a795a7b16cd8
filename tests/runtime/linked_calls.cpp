// Reads lines of numbers: followers, rounds, seed, microseconds that followers come late,
// microseconds that task 0 of every call takes, 1 where those who wait may spin, and 1 where every
// processor is a group of its own.  Each round links calls that divide matrices or images
// in ways drawn at random.  A call reads windows of lines of older calls, or all of the one before,
// and may write where a value lies that nobody needs any more.  A task adds up what it reads.  Prints
// for each line how many sums were wrong, and how many tasks ran in all.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <random>
#include <vector>

#include "runtime/group_waits.h"
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

struct Call;

// What a call reads: lines of an older one.
struct Source {
  const Call* call;
  int64_t index;
  tracea::LineAccess access;
};

// Each task writes a number: plain, so that a race is the sanitizer's to find.
struct Call {
  tracea::RowTasks rows;
  std::vector<Source> sources;
  std::vector<int>* written;  // by task, perhaps where an older call's were
  std::vector<int> runs;
  int value, first, last_reader;
  long wrong;

  size_t tasks() const { return static_cast<size_t>(rows.tasks()); }
};

void task(void* usr, size_t index) {
  Call& call = *static_cast<Call*>(usr);
  const int64_t i = static_cast<int64_t>(index);
  if (!i) rest(call.first);
  ++call.runs[index];
  for (const Source& source : call.sources) {
    const Call& old = *source.call;
    const int64_t height = old.rows.last_line();
    const tracea::Lines read =
        call.rows.all ? tracea::Lines{0, height}
                      : source.access.of(call.rows.of_tasks(i, i + 1), call.rows.last_line(), height);
    for (int64_t t = 0; t < old.rows.tasks(); ++t) {
      const tracea::Lines there = old.rows.of_tasks(t, t + 1);
      if (there.first < read.end && read.first < there.end &&
          (*old.written)[static_cast<size_t>(t)] != old.value)
        __atomic_fetch_add(&call.wrong, 1, __ATOMIC_RELAXED);
    }
  }
  (*call.written)[index] = call.value;
}

// Rows that tasks divide, of so many lines.
template <class Draw>
tracea::RowTasks draw_tasks(int64_t height, const Draw& draw) {
  tracea::RowTasks tasks = {height, 0, draw(6)};
  tasks.height = height;
  const int64_t kind = draw(3);
  if (kind == 2) {  // lines in pairs or alone, cut across
    tasks.across = draw(4), tasks.lines = draw(2);
    tasks.rows = (height + tasks.lines - 1) / tasks.lines * tasks.across;
  } else if (kind == 3) {  // lines joined to one, cut where it comes
    tasks.joined = draw(9);
    const int64_t pixels = height * tasks.joined;
    tasks.rows = draw(pixels), tasks.narrow = pixels / tasks.rows, tasks.wider = pixels % tasks.rows;
  }
  tasks.each = draw(2) == 1 ? draw(tasks.rows) : 0;
  tasks.steps = tasks.each ? (tasks.rows + tasks.each - 1) / tasks.each : draw(tasks.rows);
  tasks.all = draw(5) == 1;
  return tasks;
}

// The newest of the calls waits for what it reads, and for those who need the memory that it takes.
template <class Draw>
void draw_waits(std::vector<Call>& calls, int index, tracea::GroupWaitsOfCalls& waits,
                std::vector<std::vector<int>>& memory, const Draw& draw) {
  Call& call = calls[static_cast<size_t>(index)];
  if (call.rows.all) waits.wait_for_all(index - 1);
  for (int64_t k = call.rows.all ? 1 : draw(2); k > 0; --k) {
    const int from = call.rows.all ? index - 1 : index - static_cast<int>(draw(index < 4 ? index : 4));
    Call& old = calls[static_cast<size_t>(from)];
    if (old.last_reader < 0) continue;  // its memory has another value
    const int64_t height = call.rows.last_line(), lines = old.rows.last_line();
    tracea::LineAccess access = {0, draw(2), draw(3) - 1, draw(3)};
    access.step = lines / height > 1 ? lines / height : 1;
    call.sources.push_back({&old, from, access});
    old.last_reader = index;
    waits.wait_for(from, tracea::GroupLines(old.rows, {}, lines),
                   tracea::GroupLines(call.rows, access, lines), 0);
  }
  call.written = &memory[static_cast<size_t>(index)];
  if (index > 2 && draw(3) == 1) {
    Call& old = calls[static_cast<size_t>(index - 1 - draw(index - 1))];
    bool read = old.last_reader < 0;
    for (const Source& source : call.sources) read = read || source.call == &old;
    if (!read) {
      waits.wait_for_all(old.last_reader);
      call.written = old.written, old.last_reader = -1;
    }
  }
  if (call.written->size() < call.tasks()) call.written->resize(call.tasks());
}

}  // namespace

int main() {
  int followers, rounds, seed, late, first, spins, grouped;
  const tracea::ProcessorTopology apart = tracea::read_topology("0/1/2/3");
  while (scanf("%d %d %d %d %d %d %d", &followers, &rounds, &seed, &late, &first, &spins, &grouped) == 7) {
    tracea::Team team(followers + 1, spins, grouped ? &apart : nullptr);
    team.lead();
    std::vector<Follower> selves(static_cast<size_t>(followers), {&team, late});
    std::vector<pthread_t> threads(static_cast<size_t>(followers));
    for (int i = 0; i < followers; ++i) pthread_create(&threads[i], nullptr, follow, &selves[i]);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
    long wrong = 0, ran = 0;
    for (int round = 0; round < rounds; ++round) {
      const int64_t height = draw(100);
      const int count = static_cast<int>(draw(tracea::kMaxLinked));
      std::vector<Call> calls(static_cast<size_t>(count));
      std::vector<std::vector<int>> memory(static_cast<size_t>(count), std::vector<int>(600 * 9 * 6));
      tracea::GroupWaitsOfCalls waits;
      for (int c = 0; c < count; ++c) {
        Call& call = calls[static_cast<size_t>(c)];
        call.rows = draw_tasks(draw(2) == 1 ? height : draw(100), draw);
        call.value = c + 1, call.first = first, call.last_reader = c, call.wrong = 0;
        call.runs.assign(call.tasks(), 0);
        if (!c) call.written = &memory[0], waits.begin(call.rows);
        if (c) waits.next(call.rows), draw_waits(calls, c, waits, memory, draw), waits.add();
        team.link(call.rows, waits.waits(), !c, task, &call);
      }
      team.finish_linked();
      for (const Call& call : calls) {
        wrong += call.wrong, ran += static_cast<long>(call.runs.size());
        for (const int times : call.runs) wrong += times != 1;
      }
      if (round % 3 == 0) {  // a call with a barrier in between
        Call alone = {{height, height, 1, 1}, {}, &memory[0],
                      std::vector<int>(static_cast<size_t>(height)), 1, 0, 0, 0};
        team.share(height, task, &alone);
        for (const int times : alone.runs) wrong += times != 1;
      }
    }
    team.end();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    printf("%ld %ld\n", wrong, ran);
  }
}
