// Products and convolutions of a library for GPUs, through tracea.hpp and tsr.h, against plain sums.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <tracea.hpp>
#include <tsr.h>
#include <vector>

namespace {

using tracea::Activation;
using tracea::DType;
using Numbers = std::vector<double>;

void good(TraceaStatus status) {
  char why[TRACEA_MAX_ERROR];
  tsrGetLastError(why, sizeof why);
  if (status) throw std::runtime_error(why);
}

Numbers numbers(std::int64_t count, int seed) {
  Numbers made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = static_cast<int>((i * 7 + static_cast<std::size_t>(seed) * 3) % 17) / 16.0 - 0.5;
  return made;
}

// Numbers of at most 11 bits, so that conversions are exact.
std::uint16_t half_of(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  const auto bits = static_cast<std::uint16_t>(std::lround(fraction * 2048)) & 0x3ff;
  return static_cast<std::uint16_t>((value < 0) << 15 | (exponent + 14) << 10 | bits);
}
double value_of(std::uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 0x3ff;
  const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return half >> 15 ? -size : size;
}

class Gpu {
 public:
  explicit Gpu(int device) : device_(device) {
    good(tsrCreateContext(TSR_ABI_VERSION, device, &context_));
    good(tsrCreateStream(context_, &stream_));
  }
  ~Gpu() {
    for (void* one : memory_) tsrFree(context_, one);
    tsrDestroyStream(stream_), tsrDestroyContext(context_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void* put(const Numbers& values, DType type) {
    const std::size_t bytes = values.size() * (type == DType::f32 ? 4 : 2);
    std::vector<char> raw(bytes + 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float single = static_cast<float>(values[i]);
      const std::uint16_t half = half_of(values[i]);
      if (type == DType::f32) std::memcpy(&raw[4 * i], &single, 4);
      else std::memcpy(&raw[2 * i], &half, 2);
    }
    void* made = nullptr;
    good(tsrAlloc(context_, bytes, &made));
    memory_.push_back(made);
    good(tsrCopyToDevice(stream_, made, raw.data(), bytes));
    good(tsrSynchronize(stream_));
    return made;
  }
  Numbers get(const void* from, std::int64_t count, DType type) {
    const std::size_t size = type == DType::f32 ? 4 : 2, n = static_cast<std::size_t>(count);
    std::vector<char> raw(n * size + 1);
    good(tsrCopyToHost(stream_, raw.data(), from, n * size));
    good(tsrSynchronize(stream_));
    Numbers made(n);
    for (std::size_t i = 0; i < n; ++i) {
      float single;
      std::uint16_t half;
      if (type == DType::f32) std::memcpy(&single, &raw[4 * i], 4), made[i] = static_cast<double>(single);
      else std::memcpy(&half, &raw[2 * i], 2), made[i] = value_of(half);
    }
    return made;
  }
  void* stream() const { return tsrStreamHandle(stream_); }
  int device() const { return device_; }

 private:
  int device_;
  TsrContext* context_ = nullptr;
  TsrStream* stream_ = nullptr;
  std::vector<void*> memory_;
};

double activated(double x, Activation how) { return how == Activation::relu && x < 0 ? 0 : x; }

bool close(const char* what, const Numbers& found, const Numbers& expected, DType type) {
  double most = 0, error = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    most = std::fmax(most, std::fabs(expected[i]));
    const double off = std::fabs(found[i] - expected[i]);
    error = off <= error ? error : off;  // not a number counts
  }
  const bool ok = error <= most * (type == DType::f32 ? 1e-5 : 2e-3);
  if (!ok) std::printf("%s: off by %g of %g\n", what, error, most);
  return ok;
}

struct Product {
  std::int64_t batch, m, n, k;
  bool a_turned, b_turned, bias, shared;
  Activation how;
};

bool multiply(Gpu& gpu, const tracea::Context& context, const Product& p, DType type) {
  const std::int64_t own = p.shared ? 1 : p.batch;
  const Numbers a = numbers(p.batch * p.m * p.k, 1), b = numbers(own * p.k * p.n, 2), bias = numbers(p.n, 3);
  const auto place = [](void* at, DType of, std::initializer_list<std::int64_t> shape, const Gpu& on) {
    return tracea::TensorView(at, of, shape).on(on.device());
  };
  auto x = p.a_turned ? place(gpu.put(a, type), type, {p.batch, p.k, p.m}, gpu).transposed(1, 2)
                      : place(gpu.put(a, type), type, {p.batch, p.m, p.k}, gpu);
  auto w = p.b_turned ? place(gpu.put(b, type), type, {own, p.n, p.k}, gpu).transposed(1, 2)
                      : place(gpu.put(b, type), type, {own, p.k, p.n}, gpu);
  auto row = p.bias ? place(gpu.put(bias, DType::f32), DType::f32, {p.n}, gpu) : tracea::TensorView();
  void* result = gpu.put(numbers(p.batch * p.m * p.n, 9), type);
  context.gemm(x, w, place(result, type, {p.batch, p.m, p.n}, gpu), row, p.how, gpu.stream());
  Numbers expected;
  for (std::int64_t i = 0; i < p.batch * p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      const std::int64_t item = i / p.m, r = i % p.m;
      double sum = p.bias ? bias[static_cast<std::size_t>(j)] : 0;
      for (std::int64_t k = 0; k < p.k; ++k) {
        const std::int64_t at_a = item * p.m * p.k + (p.a_turned ? k * p.m + r : r * p.k + k);
        const std::int64_t at_b = (p.shared ? 0 : item) * p.k * p.n + (p.b_turned ? j * p.k + k : k * p.n + j);
        sum += a[static_cast<std::size_t>(at_a)] * b[static_cast<std::size_t>(at_b)];
      }
      expected.push_back(activated(sum, p.how));
    }
  char what[96];
  std::snprintf(what, sizeof what, "gemm %dx%dx%dx%d%s%s%s%s", static_cast<int>(p.batch),
                static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k),
                p.a_turned ? " a'" : "", p.b_turned ? " b'" : "", p.bias ? " bias" : "", p.shared ? " shared" : "");
  return close(what, gpu.get(result, p.batch * p.m * p.n, type), expected, type);
}

struct Image {
  std::int64_t n, c, h, w, o, kernel;
  std::int32_t stride, pad, dilation, groups;
  bool last, bias;
};

bool convolve(Gpu& gpu, const tracea::Context& context, const Image& p, DType type) {
  auto params = tracea::Conv2dParams().stride(p.stride).padding(p.pad).dilation(p.dilation).groups(p.groups);
  const std::int64_t each = p.c / p.groups, per = p.o / p.groups, kk = p.kernel;
  const std::int64_t oh = params.output_size(0, p.h, kk), ow = params.output_size(1, p.w, kk);
  const Numbers x = numbers(p.n * p.c * p.h * p.w, 4), f = numbers(p.o * each * kk * kk, 5), bias = numbers(p.o, 6);
  const auto image = [&](void* at, std::int64_t c, std::int64_t h, std::int64_t w) {
    using View = tracea::TensorView;
    return (p.last ? View(at, type, {p.n, c, h, w}, {h * w * c, 1, w * c, c}) : View(at, type, {p.n, c, h, w}))
        .on(gpu.device());
  };
  void* result = gpu.put(numbers(p.n * p.o * oh * ow, 9), type);
  context.conv2d(image(gpu.put(x, type), p.c, p.h, p.w),
                 tracea::TensorView(gpu.put(f, type), type, {p.o, each, kk, kk}).on(gpu.device()),
                 p.bias ? tracea::TensorView(gpu.put(bias, DType::f32), DType::f32, {p.o}).on(gpu.device())
                        : tracea::TensorView(),
                 image(result, p.o, oh, ow), params, gpu.stream());
  const Numbers found = gpu.get(result, p.n * p.o * oh * ow, type);
  Numbers expected(found.size());
  for (std::int64_t i = 0; i < p.n; ++i)
    for (std::int64_t o = 0; o < p.o; ++o)
      for (std::int64_t r = 0; r < oh; ++r)
        for (std::int64_t q = 0; q < ow; ++q) {
          double sum = p.bias ? bias[static_cast<std::size_t>(o)] : 0;
          for (std::int64_t c = 0; c < each; ++c)
            for (std::int64_t u = 0; u < kk; ++u)
              for (std::int64_t v = 0; v < kk; ++v) {
                const std::int64_t row = r * p.stride - p.pad + u * p.dilation;
                const std::int64_t col = q * p.stride - p.pad + v * p.dilation;
                if (row < 0 || row >= p.h || col < 0 || col >= p.w) continue;
                const std::int64_t channel = o / per * each + c;
                const std::int64_t at = p.last ? ((i * p.h + row) * p.w + col) * p.c + channel
                                               : ((i * p.c + channel) * p.h + row) * p.w + col;
                sum += x[static_cast<std::size_t>(at)] *
                       f[static_cast<std::size_t>(((o * each + c) * kk + u) * kk + v)];
              }
          const std::int64_t at = p.last ? ((i * oh + r) * ow + q) * p.o + o : ((i * p.o + o) * oh + r) * ow + q;
          expected[static_cast<std::size_t>(at)] = sum;
        }
  char what[96];
  std::snprintf(what, sizeof what, "conv2d %d channels to %d, kernel %d, stride %d, groups %d%s",
                static_cast<int>(p.c), static_cast<int>(p.o), static_cast<int>(kk), p.stride, p.groups,
                p.last ? ", channels last" : "");
  return close(what, found, expected, type);
}

void refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const tracea::Error& error) {
    std::printf("refused (%d): %s\n", static_cast<int>(error.status()), error.what());
    return;
  }
  std::printf("not refused\n");
}

}  // namespace

int main() try {
  const tracea::Context context;
  Gpu gpu(context.device());
  bool ok = true;
  const Product products[] = {
      {1, 5, 7, 9, false, false, false, false, Activation::none},
      {1, 33, 40, 64, false, true, true, false, Activation::relu},
      {1, 70, 24, 40, true, false, true, false, Activation::none},
      {3, 6, 16, 8, false, false, true, true, Activation::relu},
      {3, 6, 16, 8, false, true, false, false, Activation::none},
      {2, 4, 1, 3, false, false, true, false, Activation::none},
      {1, 1, 12, 1, false, false, false, false, Activation::none},
      {1, 3, 5, 0, false, false, true, false, Activation::none},
      {1, 0, 5, 4, false, false, true, false, Activation::none},
      {1, 1100, 136, 72, false, false, true, false, Activation::none},
      {1, 1100, 130, 72, false, true, true, false, Activation::none},
  };
  for (const Product& p : products)
    for (DType type : {DType::f32, DType::f16}) ok = multiply(gpu, context, p, type) && ok;
  const Image images[] = {
      {2, 8, 9, 10, 18, 3, 1, 1, 1, 1, false, true}, {1, 3, 12, 11, 8, 5, 2, 2, 1, 1, false, false},
      {2, 16, 7, 7, 24, 1, 1, 0, 1, 1, true, true},  {1, 8, 11, 9, 12, 3, 1, 2, 2, 4, false, true},
      {1, 8, 6, 5, 8, 3, 2, 1, 1, 2, true, false},
  };
  for (const Image& p : images)
    for (DType type : {DType::f32, DType::f16}) ok = convolve(gpu, context, p, type) && ok;
  float host[16] = {};
  const auto square = tracea::view(host, {4, 4});
  refused([&] { context.gemm(square, square, square); });
  void* device = gpu.put(numbers(16, 0), DType::f32);
  const auto there = tracea::TensorView(device, DType::f32, {4, 4}).on(gpu.device());
  refused([&] { context.gemm(there, there, there, {}, Activation::none, gpu.stream()); });
  const auto result = tracea::TensorView(gpu.put(numbers(16, 0), DType::f32), DType::f32, {4, 4});
  refused([&] { context.gemm(there, there, result.on(77)); });
  refused([&] { context.gemm(there.on(77), there.on(77), result.on(77)); });
  refused([&] { context.layer_norm(there, {}, {}, there); });
  std::printf("%s\n", context.isa().c_str());
  return ok ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("failed: %s\n", error.what());
  return 2;
}
