// Runs a model from many threads through ONNX Runtime's C interface, as a server does.
//
//     native_load MODEL LIBRARY FEED SECONDS THREADS
//
// FEED holds numbers of eight bytes and, behind their lengths, names and data: the names of the
// outputs, then for each input its name, element type, shape and data.  Prints runs per second, the
// median and 99th percentile of a run in µs, how many of the results that were compared (every
// eighth) differ from the first, and how many were.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "onnxruntime_cxx_api.h"

using Clock = std::chrono::steady_clock;
using Strings = std::vector<std::string>;

constexpr int kBetween = 8;  // runs between two that are compared

struct Feed {
  Strings inputs, outputs, data;
  std::vector<void*> values;
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

static Feed read_feed(const char* path) {
  std::ifstream in(path, std::ios::binary);
  Feed feed;
  for (int64_t left = number(in); left > 0; left--) feed.outputs.push_back(text(in));
  void* memory = nullptr;
  Ort::check(69, 0, 0, &memory);
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
  return feed;
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

int main(int count, char** arguments) {
  if (count != 6) return std::fprintf(stderr, "five arguments are needed\n"), 2;
  const auto seconds = std::chrono::duration<double>(std::atof(arguments[4]));
  const int threads = std::atoi(arguments[5]);
  Ort::Env env;
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(arguments[2]);
  const Ort::Session session(env, arguments[1], options);
  const Feed feed = read_feed(arguments[3]);
  std::vector<void*> first = run(session, feed);
  const Strings wanted = bytes(first);
  release(first);

  std::atomic<int> ready{0}, differ{0}, compared{0};
  std::atomic<bool> started{false};
  Clock::time_point end;
  std::vector<std::vector<double>> times(threads);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; t++) {
    pool.emplace_back([&, t] {
      for (int warm = 0; warm < 3; warm++) release(run(session, feed));
      ready++;
      while (!started) std::this_thread::yield();
      for (Clock::time_point now = Clock::now(); now < end;) {
        const std::vector<void*> results = run(session, feed);
        const Clock::time_point after = Clock::now();
        times[t].push_back(std::chrono::duration<double, std::micro>(after - now).count());
        if (times[t].size() % kBetween == 0) {
          compared++;
          if (bytes(results) != wanted) differ++;
        }
        release(results);
        now = Clock::now();
      }
    });
  }
  while (ready < threads) std::this_thread::yield();
  end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
  started = true;
  for (std::thread& one : pool) one.join();

  std::vector<double> all;
  for (const std::vector<double>& own : times) all.insert(all.end(), own.begin(), own.end());
  if (all.empty()) return std::fprintf(stderr, "no run ended in time\n"), 1;
  std::sort(all.begin(), all.end());
  std::printf("%.0f %.0f %.0f %d %d\n", all.size() / seconds.count(), all[all.size() / 2],
              all[all.size() * 99 / 100], differ.load(), compared.load());
  std::fflush(stdout);
  for (void* value : feed.values) Ort::call<void>(96, value);
  return 0;
}
