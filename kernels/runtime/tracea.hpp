// The kernels of tracea-graph for C++17: tracea.h with values that own, and exceptions.
//
//   tracea::Context context;                       // the processor's best kernels, all its threads
//   context.gemm(tracea::view(a, {m, k}), tracea::view(b, {k, n}), tracea::view(c, {m, n}));
//
// Header-only; link the library that tracea.h belongs to.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "tracea.h"

namespace tracea {

enum class DType : std::int32_t {
  f32 = TRACEA_F32, u8 = TRACEA_U8, i8 = TRACEA_I8, i16 = TRACEA_I16, i32 = TRACEA_I32,
  i64 = TRACEA_I64, boolean = TRACEA_BOOL, f16 = TRACEA_F16, bf16 = TRACEA_BF16
};

enum class Activation : std::int32_t {
  none = TRACEA_NONE, relu = TRACEA_RELU, sigmoid = TRACEA_SIGMOID, tanh = TRACEA_TANH,
  gelu = TRACEA_GELU, gelu_tanh = TRACEA_GELU_TANH, silu = TRACEA_SILU
};

enum class Causal : std::int32_t {
  no = TRACEA_NOT_CAUSAL, top_left = TRACEA_CAUSAL_TOP_LEFT,
  bottom_right = TRACEA_CAUSAL_BOTTOM_RIGHT
};

// A status other than success, with the library's sentence.
class Error : public std::runtime_error {
 public:
  Error(TraceaStatus status, const std::string& what) : std::runtime_error(what), status_(status) {}
  TraceaStatus status() const noexcept { return status_; }

 private:
  TraceaStatus status_;
};

inline void check(TraceaStatus status) {
  if (status == TRACEA_SUCCESS) return;
  char text[TRACEA_MAX_ERROR] = "";
  tracea_get_last_error(text, sizeof text);
  tracea_clear_error();
  throw Error(status, text);
}

// Memory that somebody else owns, with sizes and strides.
class TensorView {
 public:
  TensorView() = default;  // no tensor: an operand that is left out
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
    if (shape.size() > TRACEA_MAX_RANK)
      throw Error(TRACEA_INVALID_PARAMS, "A tensor has at most 8 axes.");
    raw_ = tracea_dense(data, static_cast<std::int32_t>(dtype),
                        static_cast<std::int32_t>(shape.size()), shape.begin());
    given_ = true;
  }
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             std::initializer_list<std::int64_t> strides)
      : TensorView(data, dtype, shape) {
    if (strides.size() != shape.size())
      throw Error(TRACEA_INVALID_PARAMS, "A tensor has one stride for each axis.");
    std::size_t axis = 0;
    for (std::int64_t stride : strides) raw_.stride[axis++] = stride;
  }

  // The view with two axes exchanged.
  TensorView transposed(std::int32_t a, std::int32_t b) const {
    if (a < 0 || b < 0 || a >= raw_.rank || b >= raw_.rank)
      throw Error(TRACEA_INVALID_PARAMS, "A tensor has no such axis.");
    TensorView out = *this;
    std::swap(out.raw_.shape[a], out.raw_.shape[b]);
    std::swap(out.raw_.stride[a], out.raw_.stride[b]);
    return out;
  }

  // The view of memory on a GPU (its number) or of the host (TRACEA_CPU, which views begin with).
  TensorView on(std::int32_t device) const noexcept {
    TensorView out = *this;
    out.raw_.device_id = device;
    return out;
  }

  std::int32_t rank() const noexcept { return raw_.rank; }
  std::int32_t device() const noexcept { return raw_.device_id; }
  std::int64_t size(std::int32_t axis) const noexcept { return raw_.shape[axis]; }
  const TraceaTensorView* raw() const noexcept { return given_ ? &raw_ : nullptr; }

 private:
  TraceaTensorView raw_ = {};
  bool given_ = false;
};

template <class T>
constexpr DType dtype_of() {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, float>) return DType::f32;
  else if constexpr (std::is_same_v<Plain, bool>) return DType::boolean;
  else if constexpr (std::is_same_v<Plain, std::uint8_t>) return DType::u8;
  else if constexpr (std::is_same_v<Plain, std::int8_t>) return DType::i8;
  else if constexpr (std::is_same_v<Plain, std::int16_t>) return DType::i16;
  else if constexpr (std::is_same_v<Plain, std::int32_t>) return DType::i32;
  else if constexpr (std::is_same_v<Plain, std::int64_t>) return DType::i64;
  else static_assert(sizeof(T) == 0, "no tensor has elements of this type");
}

// Operands are only read, but views do not say so.
template <class T>
TensorView view(T* data, std::initializer_list<std::int64_t> shape) {
  return {const_cast<std::remove_const_t<T>*>(data), dtype_of<T>(), shape};
}
template <class T>
TensorView view(T* data, std::initializer_list<std::int64_t> shape,
                std::initializer_list<std::int64_t> strides) {
  return {const_cast<std::remove_const_t<T>*>(data), dtype_of<T>(), shape, strides};
}

// tracea::Conv2dParams().stride(2).padding(1).groups(32).activation(tracea::Activation::relu)
class Conv2dParams {
 public:
  Conv2dParams& stride(std::int32_t rows, std::int32_t columns) { return pair(raw_.stride, rows, columns); }
  Conv2dParams& stride(std::int32_t both) { return stride(both, both); }
  Conv2dParams& dilation(std::int32_t rows, std::int32_t columns) { return pair(raw_.dilation, rows, columns); }
  Conv2dParams& dilation(std::int32_t both) { return dilation(both, both); }
  Conv2dParams& padding(std::int32_t above, std::int32_t left, std::int32_t below, std::int32_t right) {
    pair(raw_.padding, above, left);
    return pair(raw_.padding + 2, below, right);
  }
  Conv2dParams& padding(std::int32_t all) { return padding(all, all, all, all); }
  Conv2dParams& groups(std::int32_t count) { raw_.groups = count; return *this; }
  Conv2dParams& activation(Activation which) {
    raw_.activation = static_cast<std::int32_t>(which);
    return *this;
  }
  Conv2dParams& algorithm(TraceaConvAlgorithm which) { raw_.algorithm = which; return *this; }
  const TraceaConv2dParams* raw() const noexcept { return &raw_; }

  // Rows (axis 0) or columns (axis 1) of the result.
  std::int64_t output_size(std::int32_t axis, std::int64_t size, std::int64_t kernel) const noexcept {
    const std::int64_t window = raw_.dilation[axis] * (kernel - 1) + 1;
    const std::int64_t padded = size + raw_.padding[axis] + raw_.padding[2 + axis];
    return padded < window ? 0 : (padded - window) / raw_.stride[axis] + 1;
  }

 private:
  Conv2dParams& pair(std::int32_t* to, std::int32_t a, std::int32_t b) {
    to[0] = a, to[1] = b;
    return *this;
  }
  TraceaConv2dParams raw_ = TRACEA_CONV2D_PARAMS_INIT;
};

// Weights that were packed once; any number of threads may run one.
class Prepared {
 public:
  explicit Prepared(TraceaPrepared* handle) noexcept : handle_(handle) {}
  Prepared(Prepared&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Prepared& operator=(Prepared&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared() { tracea_release_prepared(handle_); }

  void operator()(const TensorView& x, const TensorView& y, void* stream = nullptr) const {
    check(tracea_run_prepared(handle_, x.raw(), y.raw(), stream));
  }

 private:
  TraceaPrepared* handle_;
};

// What runs here.  Threads are those of the whole library, so contexts share them.
class Context {
 public:
  // Throws Error if the library and this header differ, or no kernel runs on this processor.
  explicit Context(std::int32_t threads = 0) {
    const std::uint32_t version = tracea_version();
    const int major = static_cast<int>(version >> 16), minor = static_cast<int>(version & 0xffff);
    if (major != TRACEA_ABI_MAJOR || minor < TRACEA_ABI_MINOR)
      throw Error(TRACEA_UNSUPPORTED_CONFIG, "The library is of another version than tracea.hpp.");
    check(tracea_set_threads(threads));
    isa_ = tracea_isa();
    device_ = tracea_device();
    if (isa_.empty()) {
      char text[TRACEA_MAX_ERROR] = "";
      tracea_get_last_error(text, sizeof text);
      throw Error(TRACEA_UNSUPPORTED_CONFIG, text);
    }
  }

  const std::string& isa() const noexcept { return isa_; }
  // Where tensors lie: TRACEA_CPU, or a GPU, whose views are view(...).on(context.device()).
  std::int32_t device() const noexcept { return device_; }
  std::int32_t threads() const noexcept { return tracea_get_threads(); }

  void gemm(const TensorView& a, const TensorView& b, const TensorView& c,
            const TensorView& bias = {}, Activation activation = Activation::none,
            void* stream = nullptr) const {
    const TraceaGemmParams params = {sizeof params, static_cast<std::int32_t>(activation)};
    check(tracea_gemm(a.raw(), b.raw(), bias.raw(), c.raw(), &params, stream));
  }
  void conv2d(const TensorView& x, const TensorView& w, const TensorView& bias,
              const TensorView& out, const Conv2dParams& params = {}, void* stream = nullptr) const {
    check(tracea_conv2d(x.raw(), w.raw(), bias.raw(), out.raw(), params.raw(), stream));
  }
  void attention(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                 const TensorView& mask = {}, float scale = 0.0f, Causal causal = Causal::no,
                 void* stream = nullptr) const {
    TraceaAttentionParams params = TRACEA_ATTENTION_PARAMS_INIT;
    params.scale = scale, params.causal = static_cast<std::int32_t>(causal);
    check(tracea_attention(q.raw(), k.raw(), v.raw(), mask.raw(), out.raw(), &params, stream));
  }
  void layer_norm(const TensorView& x, const TensorView& gamma, const TensorView& beta,
                  const TensorView& out, float epsilon = 1e-5f, void* stream = nullptr) const {
    norm(TRACEA_LAYER_NORM, x, gamma, beta, out, epsilon, stream);
  }
  void rms_norm(const TensorView& x, const TensorView& gamma, const TensorView& out,
                float epsilon = 1e-5f, void* stream = nullptr) const {
    norm(TRACEA_RMS_NORM, x, gamma, {}, out, epsilon, stream);
  }

  Prepared prepare_gemm(const TensorView& b, const TensorView& bias = {},
                        Activation activation = Activation::none) const {
    const TraceaGemmParams params = {sizeof params, static_cast<std::int32_t>(activation)};
    TraceaPrepared* made = nullptr;
    check(tracea_prepare_gemm(b.raw(), bias.raw(), &params, &made));
    return Prepared(made);
  }
  Prepared prepare_conv2d(const TensorView& w, const TensorView& bias = {},
                          const Conv2dParams& params = {}) const {
    TraceaPrepared* made = nullptr;
    check(tracea_prepare_conv2d(w.raw(), bias.raw(), params.raw(), &made));
    return Prepared(made);
  }

 private:
  void norm(TraceaNormKind kind, const TensorView& x, const TensorView& gamma,
            const TensorView& beta, const TensorView& out, float epsilon, void* stream) const {
    const TraceaNormParams params = {sizeof params, kind, epsilon};
    check(tracea_norm(x.raw(), gamma.raw(), beta.raw(), out.raw(), &params, stream));
  }
  std::string isa_;
  std::int32_t device_ = TRACEA_CPU;
};

// Free functions for programs with one context.
inline const Context& default_context() {
  static const Context context;
  return context;
}
inline void conv2d(const TensorView& x, const TensorView& w, const TensorView& bias,
                   const TensorView& out, const Conv2dParams& params = {}, void* stream = nullptr) {
  default_context().conv2d(x, w, bias, out, params, stream);
}
inline void launch_gemm(const TensorView& a, const TensorView& b, const TensorView& c,
                        const TensorView& bias = {}, Activation activation = Activation::none,
                        void* stream = nullptr) {
  default_context().gemm(a, b, c, bias, activation, stream);
}

}  // namespace tracea
