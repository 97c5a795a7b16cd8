// A convolution, attention and a norm through tracea.hpp.
#include <cmath>
#include <cstdio>
#include <thread>
#include <tracea.hpp>
#include <vector>

namespace {

std::vector<float> numbers(std::int64_t count, int seed) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = static_cast<float>(static_cast<int>(i * 7 + static_cast<std::size_t>(seed)) % 11 - 5) / 8;
  return made;
}

constexpr std::int64_t C = 20, H = 9, W = 10, O = 18;

// Plain sums at one place of the result.
float sum_at(const std::vector<float>& x, const std::vector<float>& w, float bias, std::int64_t o,
             std::int64_t row, std::int64_t col) {
  double sum = bias;
  for (std::int64_t c = 0; c < C; ++c)
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 3; ++j) {
        const std::int64_t h = row + i - 1, v = col + j - 1;
        if (h < 0 || h >= H || v < 0 || v >= W) continue;
        sum += static_cast<double>(x[static_cast<std::size_t>((c * H + h) * W + v)]) *
               static_cast<double>(w[static_cast<std::size_t>(((o * C + c) * 3 + i) * 3 + j)]);
      }
  return sum > 0 ? static_cast<float>(sum) : 0.0f;
}

bool right(const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& bias,
           const std::vector<float>& y) {
  for (std::int64_t o = 0; o < O; ++o)
    for (std::int64_t row = 0; row < H; ++row)
      for (std::int64_t col = 0; col < W; ++col)
        if (std::abs(y[static_cast<std::size_t>((o * H + row) * W + col)] -
                     sum_at(x, w, bias[static_cast<std::size_t>(o)], o, row, col)) > 1e-3f)
          return false;
  return true;
}

}  // namespace

int main() {
  const tracea::Context context(2);
  const auto x = numbers(C * H * W, 1), w = numbers(O * C * 9, 2), bias = numbers(O, 3);
  std::vector<float> y(static_cast<std::size_t>(O * H * W));
  const auto params = tracea::Conv2dParams().padding(1).activation(tracea::Activation::relu);
  if (params.output_size(0, H, 3) != H) return 1;
  const auto image = tracea::view(x.data(), {1, C, H, W});
  const auto filters = tracea::view(w.data(), {O, C, 3, 3}), row = tracea::view(bias.data(), {O});
  context.conv2d(image, filters, row, tracea::view(y.data(), {1, O, H, W}), params);
  if (!right(x, w, bias, y)) return 2;

  // packed once, used by several threads at once
  const tracea::Prepared packed = context.prepare_conv2d(filters, row, params);
  bool all[4] = {};
  std::vector<std::thread> threads;
  for (bool& one : all)
    threads.emplace_back([&] {
      std::vector<float> own(y.size());
      for (int i = 0; i < 20; ++i) packed(image, tracea::view(own.data(), {1, O, H, W}));
      one = right(x, w, bias, own);
    });
  for (auto& thread : threads) thread.join();
  for (bool one : all)
    if (!one) return 3;

  try {
    context.conv2d(image, filters, row, tracea::view(y.data(), {1, O, H, W - 1}), params);
    return 4;
  } catch (const tracea::Error& error) {
    if (error.status() != TRACEA_INVALID_PARAMS) return 5;
    std::printf("refused: %s\n", error.what());
  }

  const auto q = numbers(2 * 5 * 8, 4);
  std::vector<float> out(q.size()), one(q.size(), 1.0f);
  const auto heads = tracea::view(q.data(), {1, 2, 5, 8});
  context.attention(heads, heads, tracea::view(one.data(), {1, 2, 5, 8}),
                    tracea::view(out.data(), {1, 2, 5, 8}), {}, 0.0f, tracea::Causal::bottom_right);
  for (float value : out)
    if (std::abs(value - 1.0f) > 1e-5f) return 6;  // weights sum to one
  context.rms_norm(tracea::view(q.data(), {10, 8}), {}, tracea::view(out.data(), {10, 8}));
  tracea::launch_gemm(tracea::view(q.data(), {10, 8}), tracea::view(q.data(), {10, 8}).transposed(0, 1),
                      tracea::view(y.data(), {10, 10}));
  std::printf("%s, %d threads\n", context.isa().c_str(), context.threads());
  return 0;
}
