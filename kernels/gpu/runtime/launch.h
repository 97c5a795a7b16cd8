// A launch of a program for concrete sizes and addresses: its kernel, its blocks, its arguments.
#pragma once
#include "runtime/device.h"

namespace tracea {

#ifdef TRACEA_BLOCK_TIMES
constexpr bool kTimed = true;  // kernels have one more parameter
#else
constexpr bool kTimed = false;
#endif

// Where a kernel records its blocks, as templates/block_times.h takes it.
struct BlockTimes {
  cu::Address at;
  int32_t across, tall;
};

// A launch with its arguments, stored in `bytes` at multiples of 8.
struct Ready {
  cu::Function function;
  unsigned grid[3];
  int32_t threads, shared;
  void** parameters;  // null if the grid is empty
};

// Magic-number division n / d for n < 2^31, see kernels/gpu/launch.py.
inline void divisor(int64_t d, uint32_t* out) {
  out[0] = static_cast<uint32_t>(d), out[1] = out[2] = 0;
  if (d == 1) return;
  const int p = 64 - __builtin_clzll(static_cast<uint64_t>(d - 1));
  const unsigned __int128 shifted = static_cast<unsigned __int128>(1) << (31 + p);
  out[1] = static_cast<uint32_t>((shifted + static_cast<uint64_t>(d) - 1) / static_cast<uint64_t>(d));
  out[2] = static_cast<uint32_t>(p - 1);
}

// Arguments of a tensor map: the tensor's sizes in elements and its strides in bytes.
struct Shape {
  uint64_t dims[kMaxAxes], strides[kMaxAxes];
  int lower[3], upper[3];  // corners of the im2col bounding box
};

// Whether a tensor at an address meets the alignment rules of tensor maps.
inline bool shape_of(const Argument& a, const int64_t* sizes, cu::Address at, Shape* out) {
  constexpr int64_t kStep = 16, kMostDim = int64_t{1} << 32, kMostStride = int64_t{1} << 40;
  bool fits = at % kStep == 0;
  for (int32_t i = 0; i < a.map->rank; ++i) {
    const int64_t dim = sizes[a.map->dims[i]];
    fits = fits && dim > 0 && dim <= kMostDim;
    out->dims[i] = static_cast<uint64_t>(dim);
    if (!i) continue;
    const int64_t stride = sizes[a.map->strides[i]];
    fits = fits && stride > 0 && stride < kMostStride / a.bytes && stride * a.bytes % kStep == 0;
    out->strides[i - 1] = static_cast<uint64_t>(stride) * static_cast<uint64_t>(a.bytes);
  }
  for (int i = 0; a.kind == Argument::kPixels && i < a.map->rank - 2; ++i) {
    const int64_t before = sizes[a.map->before[i]], after = sizes[a.map->after[i]];
    const int64_t most_corner = a.map->rank == kMaxAxes ? 15 : 127;
    fits = fits && before >= 0 && before <= most_corner && after >= -most_corner &&
           after <= most_corner;
    out->lower[i] = static_cast<int>(-before), out->upper[i] = static_cast<int>(after);
  }
  return fits;
}

// Encodes the tensor map of a tensor; false if its address or strides do not allow one.
inline bool describe(const Argument& a, const int64_t* sizes, cu::Address at, cu::TensorMap* out) {
  const Map& map = *a.map;
  const bool pixels = a.kind == Argument::kPixels;
  uint32_t steps[kMaxAxes] = {1, 1, 1, 1, 1};
  for (int32_t i = 0; pixels && i < map.rank - 2; ++i) steps[1 + i] = map.steps[i];
  Shape shape;
  if (!shape_of(a, sizes, at, &shape)) return false;
  const int type = map.type == kHalf        ? cu::kMapF16
                   : map.type == kBrainHalf ? cu::kMapBF16
                   : map.type == kFloat     ? cu::kMapF32
                   : map.type == kTf32      ? cu::kMapTf32
                                            : cu::kMapU8;
  const uint32_t rank = static_cast<uint32_t>(map.rank);
  const int swizzle = map.box[0] * static_cast<uint32_t>(a.bytes) < 128 ? cu::kSwizzle64 : cu::kSwizzle128;
  void* tensor = reinterpret_cast<void*>(at);
  const cu::Result result =
      pixels ? gpu.driver.encode_pixels(out, type, rank, tensor, shape.dims, shape.strides,
                                        shape.lower, shape.upper, map.box[0], map.box[1], steps, 0,
                                        swizzle, cu::kPromote256, 0)
             : gpu.driver.encode_map(out, type, rank, tensor, shape.dims, shape.strides, map.box,
                                     steps, 0, swizzle, cu::kPromote256, 0);
  return !result;
}

// Selects among alternatives the first that has an image for this GPU, applies to these sizes and
// can encode its tensor maps; the last one always applies.
template <class Address>
int32_t chosen(const Program& p, const cu::Function* functions, int32_t launch,
               const int64_t* sizes, Address address) {
  for (;; ++launch) {
    const Launch& own = p.launches[launch];
    if (!own.others) return launch;
    bool fits = functions[launch] && sizes[own.when] > 0;
    for (int32_t i = 0; fits && i < own.count; ++i) {
      const Argument& a = own.arguments[i];
      cu::TensorMap map;
      if (a.maps())
        fits = sizes[a.value] >= 0 &&
               describe(a, sizes,
                        address(a.buffer) + static_cast<uint64_t>(sizes[a.value] * a.bytes), &map);
    }
    if (fits) return launch;
  }
}

// Writes an argument to `to`; false with an error for numbers beyond a kernel's 32-bit indices.
// `constants` holds addresses of constant buffers, null while these are being computed.
template <class Address>
bool write_argument(Error& error, const Argument& a, const int64_t* sizes, const int64_t* counts,
                    const cu::Address* constants, Address address, char* to) {
  if (a.kind == Argument::kFixed) {
    const int32_t fixed = constants && constants[a.buffer];
    return memcpy(to, &fixed, sizeof fixed), true;
  }
  if (a.kind == Argument::kReal) {
    const uint32_t bits = static_cast<uint32_t>(a.value);
    return memcpy(to, &bits, sizeof bits), true;
  }
  if (a.kind == Argument::kPointer && a.buffer < 0) return memset(to, 0, 8), true;
  const int64_t value = sizes[a.value];
  if (value == kNoValue) return error.fail("A size of the plan cannot be computed.");
  if (a.addresses()) {
    const int64_t span = sizes[a.span];
    if (span == kNoValue || span < 0 || span - 1 > kMostCounted)
      return error.fail("A view spans %lld elements, more than GPU kernels count.",
                        static_cast<long long>(span));
    if (span && (value < 0 || (value + span) * a.bytes > counts[a.buffer]))
      return error.fail("A view of the plan lies outside its buffer.");
    const cu::Address at = address(a.buffer) + static_cast<uint64_t>(span ? value * a.bytes : 0);
    if (a.maps()) {
      cu::TensorMap map;
      if (!describe(a, sizes, at, &map))
        return error.fail("A tensor of the plan does not lie as its tensor map says.");
      return memcpy(to, &map, sizeof map), true;
    }
    return memcpy(to, &at, sizeof at), true;
  }
  if (value > kMostCounted || value < -kMostCounted)
    return error.fail("%lld is more than GPU kernels count.", static_cast<long long>(value));
  if (a.kind == Argument::kDivisor) {
    uint32_t words[3];
    divisor(max(value, 1), words);
    return memcpy(to, words, sizeof words), true;
  }
  const int32_t number = static_cast<int32_t>(value);
  return memcpy(to, &number, sizeof number), true;
}

template <class Address>
bool make_ready(Error& error, const Device& device, const Launch& launch, cu::Function function,
                const int64_t* sizes, const int64_t* counts, const cu::Address* constants,
                Address address, Pool& pool, Ready* out) {
  *out = {function, {0, 0, 0}, launch.threads, launch.shared, nullptr};
  for (int i = 0; i < 3; ++i) {
    const int64_t extent = sizes[launch.grid[i]];
    if (extent == kNoValue || extent < 0 || extent > (i ? 0xffff : kMostCounted))
      return error.fail("A kernel would take %lld blocks, more than a grid has.",
                        static_cast<long long>(extent));
    out->grid[i] = static_cast<unsigned>(extent);
  }
  if (launch.persistent)
    out->grid[0] = static_cast<unsigned>(
        min(out->grid[0], launch.persistent * device.multiprocessors));
  if (!out->grid[0] || !out->grid[1] || !out->grid[2]) return true;
  auto room = [](const Argument& a) {
    return a.maps() ? static_cast<int64_t>(sizeof(cu::TensorMap)) : 16;
  };
  int64_t size = kTimed ? sizeof(BlockTimes) : 0;
  for (int32_t i = 0; i < launch.count; ++i) size += room(launch.arguments[i]);
  char* at = pool.array<char>(size + 16);
  void** parameters = pool.array<void*>(launch.count + 1);
  if (!at || !parameters) return error.fail("There is no memory for a launch.");
  for (int32_t i = 0; i < launch.count; ++i) {
    const Argument& a = launch.arguments[i];
    parameters[i] = at;
    if (!write_argument(error, a, sizes, counts, constants, address, at)) return false;
    at += room(a);
  }
  if (kTimed) memset(parameters[launch.count] = at, 0, sizeof(BlockTimes));
  out->parameters = parameters;
  return true;
}

inline bool start(Error& error, const Ready& r, cu::Stream stream) {
  if (!r.parameters) return true;
  const cu::LaunchConfig config = {{r.grid[0], r.grid[1], r.grid[2]},
                                   {static_cast<unsigned>(r.threads), 1, 1},
                                   static_cast<unsigned>(r.shared), stream, nullptr, 0};
  return good(error, gpu.driver.launch(&config, r.function, r.parameters, nullptr),
              "start a kernel");
}

inline cu::KernelNode node_of(const Ready& r) {
  cu::KernelNode node = {};
  node.function = r.function;
  memcpy(node.grid, r.grid, sizeof node.grid);
  node.block[0] = static_cast<unsigned>(r.threads), node.block[1] = node.block[2] = 1;
  node.shared = static_cast<unsigned>(r.shared);
  node.parameters = r.parameters;
  return node;
}

}  // namespace tracea
