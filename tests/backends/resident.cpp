// Runs a program of a library for GPUs on tensors in device memory, at other sizes and addresses
// each time, and compares results bitwise with the first ones of equal sizes.
//
//     resident PROGRAM ROUNDS
//
// PROGRAM holds numbers of eight bytes: the words of the plan behind their number, the number of
// feeds, and for each of them the values of symbols and then every input behind its bytes.  Prints
// how many runs there were, how many differed, how many tensors were copied to or from the arena,
// how often nodes of graphs were changed (on the driver's double), and a digest of all results.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#define TRACEA_BUILD
#include "runtime/node.h"

using namespace tracea;

struct Feed {
  std::vector<int64_t> symbols;
  std::vector<std::string> inputs;
};

static int64_t number(FILE* in) {
  int64_t value = 0;
  if (fread(&value, 8, 1, in) != 1) exit(2);
  return value;
}

// Tensors of one feed on the device: `shift` bytes behind multiples of 256.
struct Placed {
  std::vector<void*> data;
  std::vector<cu::Address> held;

  void add(Error& error, int64_t bytes, int64_t shift) {
    cu::Address made = 0;
    allocate(error, bytes + 256, &made);
    held.push_back(made);
    data.push_back(reinterpret_cast<void*>(made + static_cast<cu::Address>(shift)));
  }
  void release() {
    for (cu::Address one : held) gpu.driver.free_device(one);
  }
};

struct Bench {
  Program program = {};
  Shared shared = {};
  Context context = {};
  Error error = {};
  std::vector<Feed> feeds;
  std::vector<std::string> wanted;
  long runs = 0, differ = 0, staged = 0;

  bool open(FILE* in) {
    std::vector<int64_t> words(static_cast<size_t>(number(in)));
    for (int64_t& word : words) word = number(in);
    if (!find_device(error) || !(shared.device = device_at(error, 0)) ||
        !enter(error, *shared.device) ||
        !Reader(words.data(), static_cast<int64_t>(words.size()), &program, &error).program())
      return false;
    Program& p = program;
    shared.program = &p, shared.resident = true;
    shared.functions = p.pool.array<cu::Function>(p.launch_count + 1);
    shared.constants = p.pool.array<cu::Address>(p.buffer_count());
    shared.once = p.pool.array<bool>(p.launch_count + 1);
    for (int32_t i = 0; i < p.launch_count; ++i)
      if (!load_kernel(error, *shared.device, p.launches[i].kernel, p.launches[i].shared,
                       &shared.functions[i]))
        return false;
    for (int64_t left = number(in); left > 0; --left) {
      Feed feed;
      for (int32_t i = 0; i < p.symbol_count; ++i) feed.symbols.push_back(number(in));
      for (int32_t i = 0; i < p.input_count; ++i) {
        feed.inputs.emplace_back(static_cast<size_t>(number(in)), '\0');
        if (fread(&feed.inputs[i][0], 1, feed.inputs[i].size(), in) != feed.inputs[i].size()) exit(2);
      }
      feeds.push_back(feed);
    }
    wanted.resize(feeds.size());
    return good(error, gpu.driver.create_stream(&context.stream, cu::kNonBlocking), "make a stream");
  }

  // Runs a feed.  `over`: the first output lies on the first input that is as large.
  bool run(size_t which, Placed& placed, bool over) {
    const Program& p = program;
    const Feed& feed = feeds[which];
    std::vector<int64_t> sizes(static_cast<size_t>(p.size_count) + 1);
    std::vector<cu::Address> tensors(static_cast<size_t>(p.tensor_count()));
    std::vector<void*> data = placed.data;
    evaluate(p, feed.symbols.data(), sizes.data());
    const int64_t first = bytes_of(p, p.input_count, sizes.data());
    for (int32_t i = 0; over && i < p.input_count; ++i)
      if (static_cast<int64_t>(feed.inputs[i].size()) >= first) {
        data[p.input_count] = data[i];
        break;
      }
    for (int32_t i = 0; i < p.input_count; ++i)
      if (!good(error, gpu.driver.upload_async(reinterpret_cast<cu::Address>(data[i]),
                                               feed.inputs[i].data(), feed.inputs[i].size(),
                                               context.stream), "take an input"))
        return false;
    place_tensors(shared, sizes.data(), data.data(), tensors.data());
    for (cu::Address at : tensors) staged += !at;
    Layout* layout = layout_for(error, shared, context, feed.symbols.data(), sizes.data(), tensors.data());
    if (!layout || !run_resident(error, shared, context, *layout, data.data())) return false;
    std::string found;
    for (int32_t i = p.input_count; i < p.tensor_count(); ++i) {
      std::string part(static_cast<size_t>(layout->counts[i]), '\0');
      if (!good(error, gpu.driver.download_async(&part[0], reinterpret_cast<cu::Address>(data[i]),
                                                 part.size(), context.stream), "give a result"))
        return false;
      if (!good(error, gpu.driver.wait_for_stream(context.stream), "finish a run")) return false;
      found += part;
    }
    if (!wanted[which].size()) wanted[which] = found;
    return ++runs, differ += found != wanted[which], true;
  }
};

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "two arguments are needed\n"), 2;
  FILE* in = fopen(arguments[1], "rb");
  static Bench bench;
  bool ok = in && bench.open(in);
  constexpr int64_t kShifts[] = {0, 16, 0, 8, 48};  // 8: less than kernels and tensor maps need
  std::vector<std::vector<Placed>> placed(bench.feeds.size());
  for (size_t f = 0; ok && f < placed.size(); ++f) {
    std::vector<int64_t> sizes(static_cast<size_t>(bench.program.size_count) + 1);
    evaluate(bench.program, bench.feeds[f].symbols.data(), sizes.data());
    for (int64_t shift : kShifts) {
      placed[f].emplace_back();
      for (int32_t i = 0; i < bench.program.tensor_count(); ++i)
        placed[f].back().add(bench.error, bytes_of(bench.program, i, sizes.data()), shift);
    }
    ok = !bench.error.set;
  }
  // each placement four times, so that its graph is made; then all of them in turn
  for (long round = 0; ok && round < atol(arguments[2]); ++round)
    for (size_t f = 0; ok && f < placed.size(); ++f) {
      const size_t n = placed[f].size(), i = static_cast<size_t>(round);
      ok = bench.run(f, placed[f][i < 4 * n ? i / 4 : i % n], i % 7 == 5);
    }
  if (!ok) return fprintf(stderr, "%s\n", in ? bench.error.text : "no program"), 1;
  uint64_t digest[2] = {0, 0}, sum = 0;
  for (const std::string& one : bench.wanted) {
    digest_of(one.data(), static_cast<int64_t>(one.size()), digest);
    sum = sum * 31 + digest[0];
  }
  auto updates = reinterpret_cast<long (*)()>(dlsym(RTLD_DEFAULT, "double_updates"));
  void* double_ = updates ? nullptr : dlopen("libcuda.so.1", RTLD_NOW);
  if (double_) updates = reinterpret_cast<long (*)()>(dlsym(double_, "double_updates"));
  printf("%ld %ld %ld %ld %016llx\n", bench.runs, bench.differ, bench.staged,
         updates ? updates() : -1, static_cast<unsigned long long>(sum));
  for (std::vector<Placed>& own : placed)
    for (Placed& one : own) one.release();
  return 0;
}
