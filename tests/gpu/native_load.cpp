// Runs a model from many threads through ONNX Runtime's C interface, as a server does.
//
//     native_load MODEL LIBRARY FEED SECONDS THREADS [RUNS]
//
// FEED holds numbers of eight bytes and, behind their lengths, names and data: the names of the
// outputs, the number of feeds, then for each input of a feed its name, element type, shape and data.
// A thread takes the feeds in turn, for SECONDS and at least RUNS runs.  Prints runs per second, the
// median and 99th percentile of a run in µs, how many of the results that were compared (every
// eighth) differ from the first of their feed, and how many were.
//
// With RUNS a line for each feed follows: the µs of its first, second and third run, then the median,
// the 99th and 99.9th percentile and the most of all runs.  A last line says of runs that took over
// 1.15 times their feed's median how many there were, and in how many of them the thread was
// preempted, waited, moved to another processor, or touched new pages; then the same percentiles of
// equal work without ONNX Runtime and a GPU, which tell how steady the machine is.  With a single feed
// another line has those of such work during the runs, by a thread beside that reads the clock all the
// time: what it misses is added to the median.  (Large feeds are copied by threads on all processors.)
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <sched.h>
#include <sys/resource.h>

#include "onnxruntime_cxx_api.h"

using Clock = std::chrono::steady_clock;
using Strings = std::vector<std::string>;

constexpr int kBetween = 8;  // runs between two that are compared

struct Feed {
  Strings inputs, outputs, data;
  std::vector<void*> values;
  Strings wanted;
  double first[3];
};

// A run of a feed, and what the thread met while it lasted.
struct Run {
  double us;
  std::size_t feed;
  bool preempted, waited, moved, faulted;
};

static int64_t number(std::istream& in) {
  int64_t value = 0;
  in.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

static std::string text(std::istream& in) {
  std::string value(number(in), '\0');
  in.read(value.data(), value.size());
  return value;
}

static std::vector<Feed> read_feeds(const char* path) {
  std::ifstream in(path, std::ios::binary);
  Strings outputs;
  for (int64_t left = number(in); left > 0; left--) outputs.push_back(text(in));
  void* memory = nullptr;
  Ort::check(69, 0, 0, &memory);
  std::vector<Feed> feeds(number(in));
  for (Feed& feed : feeds) {
    feed.outputs = outputs;
    const int64_t count = number(in);
    feed.data.reserve(count);  // values point into the strings
    for (int64_t i = 0; i < count; i++) {
      feed.inputs.push_back(text(in));
      const int type = static_cast<int>(number(in));
      std::vector<int64_t> shape(number(in));
      for (int64_t& size : shape) size = number(in);
      feed.data.push_back(text(in));
      void* value = nullptr;
      Ort::check(49, memory, static_cast<void*>(feed.data.back().data()), feed.data.back().size(),
                 shape.data(), shape.size(), type, &value);
      feed.values.push_back(value);
    }
  }
  return feeds;
}

static std::vector<const char*> pointers(const Strings& names) {
  std::vector<const char*> made;
  for (const std::string& name : names) made.push_back(name.c_str());
  return made;
}

static std::vector<void*> run(const Ort::Session& session, const Feed& feed) {
  const std::vector<const char*> inputs = pointers(feed.inputs), outputs = pointers(feed.outputs);
  std::vector<void*> results(outputs.size());
  Ort::check(9, session.handle, nullptr, inputs.data(), feed.values.data(), inputs.size(),
             outputs.data(), outputs.size(), results.data());
  return results;
}

static std::size_t bytes_of_element(int type) {
  switch (type) {
    case 1: case 6: return 4;    // float, int32
    case 7: case 11: return 8;   // int64, double
    case 10: case 16: return 2;  // float16, bfloat16
    default: return 1;
  }
}

// The bytes of results.
static Strings bytes(const std::vector<void*>& results) {
  Strings found;
  for (void* result : results) {
    void *data = nullptr, *shape = nullptr;
    std::size_t count = 0;
    int type = 0;
    Ort::check(51, result, &data);
    Ort::check(65, result, &shape);
    Ort::check(60, shape, &type);
    Ort::check(64, shape, &count);
    Ort::call<void>(99, shape);
    found.emplace_back(static_cast<const char*>(data), count * bytes_of_element(type));
  }
  return found;
}

static void release(const std::vector<void*>& results) {
  for (void* result : results) Ort::call<void>(96, result);
}

static double since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

static Run timed(const Ort::Session& session, std::vector<Feed>& feeds, std::size_t which,
                 bool watched, std::vector<void*>* results) {
  rusage before = {}, after = {};
  if (watched) getrusage(RUSAGE_THREAD, &before);
  const int cpu = watched ? sched_getcpu() : 0;
  const Clock::time_point start = Clock::now();
  *results = run(session, feeds[which]);
  Run made = {since(start), which, false, false, false, false};
  if (!watched) return made;
  made.moved = sched_getcpu() != cpu;
  getrusage(RUSAGE_THREAD, &after);
  made.preempted = after.ru_nivcsw != before.ru_nivcsw;
  made.waited = after.ru_nvcsw != before.ru_nvcsw;
  made.faulted = after.ru_minflt != before.ru_minflt;
  return made;
}

static double part(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(sorted.size() * share))];
}

static void print_tail(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf("%.1f %.1f %.1f %.1f\n", part(times, 0.5), part(times, 0.99), part(times, 0.999),
              times.back());
}

// Times of additions that take as long as a run.
static std::vector<double> steady(double us, std::size_t count) {
  volatile uint64_t sum = 0;
  auto work = [&](uint64_t steps) {
    const Clock::time_point start = Clock::now();
    for (uint64_t i = 0; i < steps; i++) sum = sum + i;
    return since(start);
  };
  constexpr uint64_t kTried = 1 << 16;
  double least = work(kTried);
  for (int i = 0; i < 20; i++) least = std::min(least, work(kTried));
  const uint64_t steps = static_cast<uint64_t>(kTried * us / least);
  std::vector<double> times;
  while (times.size() < count) times.push_back(work(steps));
  return times;
}

// A thread that reads the clock again and again: when it did not get to do so, the machine was busy
// with something else.
class Witness {
 public:
  explicit Witness(bool asked) {
    if (asked) thread_ = std::thread([this] { watch(); });
  }
  ~Witness() { end(); }

  void end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }

  // How long work of so many µs would have taken, each time one after another.
  std::vector<double> times(double us) const {
    std::vector<double> found(static_cast<std::size_t>(lasted_ / us), us);
    for (const auto& [start, gap] : gaps_)
      for (double at = start, left = gap; left > 0;) {
        const std::size_t which = static_cast<std::size_t>(at / us);
        const double here = std::min(left, (which + 1) * us - at);
        if (which < found.size()) found[which] += here;
        at += here + 1e-9, left -= here + 1e-9;
      }
    return found;
  }

 private:
  void watch() {
    constexpr double kRead = 1;  // µs that reading the clock takes at most
    const Clock::time_point start = Clock::now();
    for (double before = 0; !ended_; before = lasted_) {
      lasted_ = since(start);
      if (lasted_ - before > kRead) gaps_.emplace_back(before, lasted_ - before);
    }
  }

  std::atomic<bool> ended_{false};
  std::vector<std::pair<double, double>> gaps_;  // start and length, in µs
  double lasted_ = 0;
  std::thread thread_;
};

static void print_tails(const std::vector<Feed>& feeds, const std::vector<Run>& runs,
                        const Witness& witness) {
  std::vector<std::vector<double>> times(feeds.size());
  std::vector<double> half;
  for (const Run& one : runs) times[one.feed].push_back(one.us);
  for (std::size_t f = 0; f < feeds.size(); f++) {
    std::sort(times[f].begin(), times[f].end());
    half.push_back(times[f].empty() ? 0 : part(times[f], 0.5));
    if (times[f].empty()) continue;
    std::printf("%.0f %.0f %.0f ", feeds[f].first[0], feeds[f].first[1], feeds[f].first[2]);
    print_tail(times[f]);
  }
  int slow = 0, preempted = 0, waited = 0, moved = 0, faulted = 0;
  for (const Run& one : runs) {
    if (one.us <= 1.15 * half[one.feed]) continue;
    slow++, preempted += one.preempted, waited += one.waited, moved += one.moved;
    faulted += one.faulted;
  }
  std::printf("%d %d %d %d %d ", slow, preempted, waited, moved, faulted);
  print_tail(steady(half[0], runs.size()));
  if (feeds.size() == 1) print_tail(witness.times(half[0]));
}

int main(int count, char** arguments) {
  if (count != 6 && count != 7) return std::fprintf(stderr, "five arguments are needed\n"), 2;
  const auto seconds = std::chrono::duration<double>(std::atof(arguments[4]));
  const int threads = std::atoi(arguments[5]);
  const std::size_t least = count == 7 ? std::strtoul(arguments[6], nullptr, 10) : 0;
  Ort::Env env;
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(arguments[2]);
  const Ort::Session session(env, arguments[1], options);
  std::vector<Feed> feeds = read_feeds(arguments[3]);
  std::vector<void*> results;
  for (std::size_t f = 0; f < feeds.size(); f++)
    for (double& us : feeds[f].first) {
      us = timed(session, feeds, f, false, &results).us;
      if (feeds[f].wanted.empty()) feeds[f].wanted = bytes(results);
      release(results);
    }

  std::atomic<int> ready{0}, differ{0}, compared{0};
  std::atomic<bool> started{false};
  Clock::time_point start, end;
  std::vector<std::vector<Run>> runs(threads);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; t++) {
    pool.emplace_back([&, t] {
      for (Feed& feed : feeds)
        for (int warm = 0; warm < 3; warm++) release(run(session, feed));
      runs[t].reserve(least);
      ready++;
      while (!started) std::this_thread::yield();
      for (std::size_t i = 0; Clock::now() < end || i < least; i++) {
        std::vector<void*> found;
        const std::size_t which = (i + t) % feeds.size();
        runs[t].push_back(timed(session, feeds, which, least > 0, &found));
        if (i / feeds.size() % kBetween == 0) {
          compared++;
          if (bytes(found) != feeds[which].wanted) differ++;
        }
        release(found);
      }
    });
  }
  while (ready < threads) std::this_thread::yield();
  Witness witness(least > 0 && feeds.size() == 1);
  start = Clock::now();
  end = start + std::chrono::duration_cast<Clock::duration>(seconds);
  started = true;
  for (std::thread& one : pool) one.join();
  const double took = since(start) / 1e6;
  witness.end();

  std::vector<Run> all;
  std::vector<double> times;
  for (const std::vector<Run>& own : runs) all.insert(all.end(), own.begin(), own.end());
  for (const Run& one : all) times.push_back(one.us);
  if (all.empty()) return std::fprintf(stderr, "no run ended in time\n"), 1;
  std::sort(times.begin(), times.end());
  std::printf("%.0f %.0f %.0f %d %d\n", times.size() / took, part(times, 0.5), part(times, 0.99),
              differ.load(), compared.load());
  if (least) print_tails(feeds, all, witness);
  std::fflush(stdout);
  for (const Feed& feed : feeds)
    for (void* value : feed.values) Ort::call<void>(96, value);
  return 0;
}
