// A double of NVIDIA's driver: kernels of the host dialect (shared objects) on memory of the host.
// It answers as strictly as it can: what a driver would refuse, or leave undefined, is an error.
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

struct Function {
  const char* (*run)(void**, const int32_t*, int32_t, int32_t, uint32_t);
  std::vector<int32_t> sizes;
  int shared = 48 << 10;
};
struct Copy3D {
  size_t from_x, from_y, from_z, from_lod;
  int from_type;
  const void* from_host;
  uint64_t from_device;
  void *from_array, *reserved0;
  size_t from_pitch, from_height, to_x, to_y, to_z, to_lod;
  int to_type;
  void* to_host;
  uint64_t to_device;
  void *to_array, *reserved1;
  size_t to_pitch, to_height, width, height, depth;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
};
struct KernelNode {
  Function* function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
  void *kernel, *context;
};
struct Edge {
  unsigned char from_port, to_port, type, reserved[5];
};
struct Node {
  bool kernel;
  KernelNode launch;
  std::vector<std::vector<char>> held;
  Copy3D copy;
  Node* before = nullptr;
};
struct Graph {
  std::vector<Node*> nodes;
};
// A copy that a stream makes as late as it may.
struct Later {
  void* to;
  const void* from;
  size_t bytes;
};
struct Stream {
  std::deque<Later> copies;
  long made = 0;  // copies that were made or wait
};
struct Event {
  Stream* stream = nullptr;
  long copies = 0;
};

std::mutex mutex;
constexpr int kDevices = 8;
struct Allocation {
  size_t bytes;
  int device;
};
std::map<uint64_t, Allocation> memory;  // allocations of devices
char contexts[kDevices];                // their addresses are the contexts
thread_local int current = -1;          // the device of this thread's context
long launches_on[kDevices];
std::map<void*, size_t> pinned;
size_t pinned_bytes = 0, most_pinned = 0;
Stream null_stream;
std::string said;
long launches = 0, replays = 0, updates = 0;
int failing = 0;      // a launch to refuse, counted down
bool broken = false;  // a launch failed: nothing works any more

bool inside(uint64_t at, size_t bytes) {
  auto next = memory.upper_bound(at);
  if (next == memory.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second.bytes && next->second.device == current;
}

int usable() { return broken ? LAUNCH_FAILED : current < 0 ? INVALID : 0; }

// Makes the copies of a stream, except for the last `left`; kernels come after all of them.
void finish(Stream* stream, long left = 0) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!stream) stream = &null_stream;
  for (; (long)stream->copies.size() > left; stream->copies.pop_front()) {
    const Later& one = stream->copies.front();
    memcpy(one.to, one.from, one.bytes);
  }
}

int copy_later(Stream* stream, void* to, const void* from, size_t bytes, const void* on_device) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!inside((uint64_t)on_device, bytes)) return INVALID;
  static const char* most = getenv("DOUBLE_COPIES");  // asynchronous ones until the GPU fails
  static long left = most ? atol(most) : -1;
  if (left >= 0 && left-- == 0) return broken = true, LAUNCH_FAILED;
  if (!stream) stream = &null_stream;
  stream->copies.push_back({to, from, bytes}), ++stream->made;
  return 0;
}

size_t held() {  // bytes of this thread's device
  size_t sum = 0;
  for (auto& one : memory) sum += one.second.device == current ? one.second.bytes : 0;
  return sum;
}

int run(Function* f, const unsigned* grid, const unsigned* block, unsigned shared, void** arguments) {
  std::lock_guard<std::mutex> lock(mutex);
  if (const int refused = usable()) return refused;
  if (!f || !grid[0] || !grid[1] || !grid[2] || block[1] != 1 || block[2] != 1) return INVALID;
  if ((int)shared > f->shared) return INVALID;
  if (failing && !--failing) return broken = true, LAUNCH_FAILED;
  const int32_t size[3] = {(int32_t)grid[0], (int32_t)grid[1], (int32_t)grid[2]};
  ++launches, ++launches_on[current];
  const char* wrong = f->run(arguments, size, (int32_t)block[0], (int32_t)shared, 0);
  if (!wrong) return 0;
  said = wrong;
  fprintf(stderr, "driver's double: %s\n", wrong);
  return broken = true, LAUNCH_FAILED;
}

int copy(const Copy3D& c) {
  std::lock_guard<std::mutex> lock(mutex);
  const bool up = c.from_type == 1;
  if (c.from_type + c.to_type != 3 || c.height != 1 || c.depth != 1) return INVALID;
  if (!inside(up ? c.to_device : c.from_device, c.width)) return INVALID;
  memcpy(up ? (void*)c.to_device : c.to_host, up ? c.from_host : (void*)c.from_device, c.width);
  return 0;
}

}  // namespace

API long double_launches() { return launches; }
API long double_launches_on(int device) { return launches_on[device]; }
API long double_replays() { return replays; }
API long double_updates() { return updates; }
API long double_most_pinned() { return (long)most_pinned; }
API long double_live() { return (long)(memory.size() + pinned.size()); }
API void double_fail(int launch) { failing = launch; }

API int cuInit(unsigned) { return 0; }
API int cuDriverGetVersion(int* v) {
  const char* wish = getenv("DOUBLE_DRIVER");
  return *v = wish ? atoi(wish) : 13000, 0;
}
API int cuGetErrorName(int e, const char** s) {
  static char text[32];
  snprintf(text, sizeof text, "CUDA_ERROR_%d", e);
  return *s = text, 0;
}
API int cuGetErrorString(int e, const char** s) {
  return *s = e == LAUNCH_FAILED && !said.empty() ? said.c_str() : "refused by the double", 0;
}
API int cuDeviceGetCount(int* n) {
  const char* wish = getenv("DOUBLE_DEVICES");
  return *n = wish ? atoi(wish) : 1, 0;
}
API int cuDeviceGet(int* d, int i) { return *d = i, 0; }
API int cuDeviceGetAttribute(int* v, int kind, int) {
  const char* wish = getenv("DOUBLE_CAPABILITY");
  const int capability = wish ? atoi(wish) : 90;
  *v = kind == 75 ? capability / 10 : kind == 76 ? capability % 10 : kind == 16 ? 2 : 1;
  return 0;
}
API int cuDevicePrimaryCtxRetain(void** c, int d) { return *c = &contexts[d], 0; }
API int cuCtxSetCurrent(void* c) {
  const ptrdiff_t device = (char*)c - contexts;
  if (device < 0 || device >= kDevices) return INVALID;
  return current = (int)device, 0;
}
API int cuCtxGetCurrent(void** c) { return *c = current < 0 ? nullptr : &contexts[current], 0; }
API int cuModuleLoadData(void** m, const void* image) {
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  if (memcmp(head->e_ident, ELFMAG, SELFMAG)) return INVALID;
  const size_t bytes = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  const int file = memfd_create("kernel", 0);
  if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return INVALID;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  *m = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!*m) fprintf(stderr, "driver's double: %s\n", dlerror());
  return *m ? 0 : INVALID;  // the file stays open: its name is what libraries are told apart by
}
API int cuModuleGetFunction(Function** f, void* m, const char* name) {
  void* run = dlsym(m, name);
  void* sizes = dlsym(m, (std::string(name) + "_parameters").c_str());
  if (!run || !sizes) return NOT_FOUND;
  *f = new Function;
  (*f)->run = (decltype((*f)->run))run;
  (*f)->sizes.resize(256);
  (*f)->sizes.resize((size_t)((int32_t(*)(int32_t*))sizes)((*f)->sizes.data()));
  return 0;
}
API int cuFuncSetAttribute(Function* f, int kind, int value) {
  if (kind == 9) return value < -1 || value > 100 ? INVALID : 0;  // a share of memory, in percent
  if (kind != 8 || value > 227 << 10) return INVALID;
  return f->shared = value, 0;
}
API int cuMemAlloc_v2(uint64_t* p, size_t n) {
  std::lock_guard<std::mutex> lock(mutex);
  void* made = nullptr;
  if (const int refused = usable()) return refused;
  if (!n) return INVALID;
  const char* most = getenv("DOUBLE_MEMORY");
  if ((most && held() + n > (size_t)atol(most)) || posix_memalign(&made, 256, n))
    return OUT_OF_MEMORY;
  memset(made, 0xff, n);  // NaN of every type
  memory[*p = (uint64_t)made] = {n, current};
  return 0;
}
API int cuMemFree_v2(uint64_t p) {
  std::lock_guard<std::mutex> lock(mutex);
  if (const int refused = usable()) return refused;
  if (!memory.erase(p)) return INVALID;
  free((void*)p);
  return 0;
}
API int cuMemAllocAsync(uint64_t* p, size_t n, void*) { return cuMemAlloc_v2(p, n); }
API int cuMemFreeAsync(uint64_t p, void*) { return cuMemFree_v2(p); }
API int cuMemHostAlloc(void** p, size_t n, unsigned) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!(*p = malloc(n))) return OUT_OF_MEMORY;
  memset(*p, 0xff, n);
  pinned[*p] = n, pinned_bytes += n;
  if (pinned_bytes > most_pinned) most_pinned = pinned_bytes;
  return 0;
}
API int cuMemFreeHost(void* p) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = pinned.find(p);
  if (found == pinned.end()) return INVALID;
  pinned_bytes -= found->second;
  pinned.erase(found);
  free(p);
  return 0;
}
API int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!inside(to, n)) return INVALID;
  memcpy((void*)to, from, n);
  return 0;
}
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, Stream* stream) {
  return copy_later(stream, (void*)to, from, n, (void*)to);
}
API int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, Stream* stream) {
  return copy_later(stream, to, (void*)from, n, (void*)from);
}
API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, Stream* stream) {
  finish(stream);
  std::lock_guard<std::mutex> lock(mutex);
  if (!inside(from, n) || !inside(to, n)) return INVALID;
  memmove((void*)to, (void*)from, n);
  return 0;
}
API int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* at, const uint64_t* dims,
                               const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                               int interleave, int swizzle, int, int fill) {
  struct Map {  // templates/wgmma_host.h
    uint64_t address, dims[5], strides[4];
    uint16_t box[5];
    uint8_t rank, size, window[12], rounded, unused[23];
  } made = {};
  if ((uint64_t)map % 64 || (type && type != 6 && type != 7 && type != 9 && type != 11) || rank < 2 || rank > 5) return INVALID;
  const uint8_t size = type == 7 || type == 11 ? 4 : type ? 2 : 1;  // UINT8 is 0, FLOAT32 7
  if ((uint64_t)at % 16 || interleave || fill || box[0] * size != (swizzle == 3 ? 128u : 64u)) return INVALID;
  if (swizzle != 2 && swizzle != 3) return INVALID;
  made.address = (uint64_t)at, made.rank = (uint8_t)rank, made.size = size, made.rounded = type == 11;
  for (uint32_t i = 0; i < rank; ++i) {
    if (!dims[i] || dims[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1) return INVALID;
    if (i && (strides[i - 1] % 16 || !strides[i - 1])) return INVALID;
    made.dims[i] = dims[i], made.box[i] = (uint16_t)box[i];
    if (i) made.strides[i - 1] = strides[i - 1];
  }
  return memcpy(map, &made, sizeof made), 0;
}
API int cuTensorMapEncodeIm2col(void* map, int type, uint32_t rank, void* at, const uint64_t* dims,
                                const uint64_t* strides, const int* lower, const int* upper,
                                uint32_t channels, uint32_t pixels, const uint32_t* steps,
                                int interleave, int swizzle, int promotion, int fill) {
  const uint32_t box[5] = {channels, 1, 1, 1, 1}, ones[5] = {1, 1, 1, 1, 1};
  if (rank < 4 || rank > 5 || !pixels || pixels > 1024 || steps[0] != 1 || steps[rank - 1] != 1)
    return INVALID;
  int8_t ends[9] = {};
  const int axes = (int)rank - 2, most = axes == 3 ? 16 : 128;
  for (int i = 0; i < axes; ++i) {
    for (const int corner : {lower[i], upper[i]})
      if (corner < -most || corner >= most) return INVALID;
    if (!steps[1 + i] || steps[1 + i] > 8) return INVALID;
    ends[i] = (int8_t)lower[i], ends[3 + i] = (int8_t)upper[i], ends[6 + i] = (int8_t)steps[1 + i];
  }
  if (cuTensorMapEncodeTiled(map, type, rank, at, dims, strides, box, ones, interleave, swizzle,
                             promotion, fill))
    return INVALID;
  memcpy((char*)map + 92, ends, sizeof ends);
  const uint16_t count = (uint16_t)pixels;
  return memcpy((char*)map + 102, &count, sizeof count), 0;
}
API int cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
API int cuStreamCreate(Stream** s, unsigned) { return *s = new Stream, 0; }
API int cuStreamDestroy_v2(Stream* s) { return delete s, 0; }
API int cuStreamWriteValue32_v2(Stream* s, uint64_t at, uint32_t value, unsigned flags) {
  finish(s);
  std::lock_guard<std::mutex> lock(mutex);
  if (const int refused = usable()) return refused;
  auto next = pinned.upper_bound((void*)at);
  if (flags || at % 4 || next == pinned.begin()) return INVALID;
  --next;
  if (at + 4 > (uint64_t)next->first + next->second) return INVALID;
  __atomic_store_n((uint32_t*)at, value, __ATOMIC_RELEASE);
  return 0;
}
API int cuStreamSynchronize(Stream* s) { return finish(s), usable(); }
API int cuEventCreate(Event** e, unsigned flags) {
  return flags == 2 ? *e = new Event, 0 : INVALID;  // not timed
}
API int cuEventDestroy_v2(Event* e) { return delete e, 0; }
API int cuEventRecord(Event* e, Stream* s) {
  std::lock_guard<std::mutex> lock(mutex);
  return e->stream = s, e->copies = s->made, usable();
}
API int cuEventSynchronize(Event* e) {
  if (!e->stream) return INVALID;
  return finish(e->stream, e->stream->made - e->copies), usable();
}
API int cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** arguments, void**) {
  finish((Stream*)c->stream);
  return run(f, c->grid, c->block, c->shared, arguments);
}
API int cuGraphCreate(Graph** g, unsigned) { return *g = new Graph, 0; }
API int cuGraphAddKernelNode_v2(Node** out, Graph* g, Node* const*, size_t n, const KernelNode* k) {
  if (n || !k->function) return INVALID;
  Node* node = new Node;
  node->kernel = true;
  node->launch = *k;
  for (size_t i = 0; i < k->function->sizes.size(); ++i) {
    const char* from = (const char*)k->parameters[i];
    node->held.emplace_back(from, from + k->function->sizes[i]);
  }
  g->nodes.push_back(*out = node);
  return 0;
}
API int cuGraphAddMemcpyNode(Node** out, Graph* g, Node* const*, size_t n, const Copy3D* c, void*) {
  if (n || !c->width) return INVALID;
  Node* node = new Node;
  node->kernel = false;
  node->copy = *c;
  g->nodes.push_back(*out = node);
  return 0;
}
API int cuGraphAddDependencies_v2(Graph*, Node* const* from, Node* const* to, const Edge* e, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const bool programmatic = e[i].type == 1 && e[i].from_port == 1;
    if (programmatic && !(from[i]->kernel && to[i]->kernel)) return INVALID;
    to[i]->before = from[i];
  }
  return 0;
}
API int cuGraphInstantiateWithFlags(Graph** e, Graph* g, unsigned long long) {
  for (size_t i = 1; i < g->nodes.size(); ++i)
    if (g->nodes[i]->before != g->nodes[i - 1]) return INVALID;
  return *e = g, 0;
}
API int cuGraphExecKernelNodeSetParams_v2(Graph* e, Node* node, const KernelNode* k) {
  for (Node* own : e->nodes) {
    if (own != node) continue;
    if (!node->kernel || !k->function || k->function != node->launch.function) return INVALID;
    node->launch = *k;
    for (size_t i = 0; i < node->held.size(); ++i)
      memcpy(node->held[i].data(), k->parameters[i], node->held[i].size());
    return ++updates, 0;
  }
  return INVALID;
}
API int cuGraphUpload(Graph*, void*) { return 0; }
API int cuGraphLaunch(Graph* g, Stream* stream) {
  finish(stream);
  ++replays;
  for (Node* node : g->nodes) {
    int result;
    if (node->kernel) {
      std::vector<void*> arguments;
      for (auto& held : node->held) arguments.push_back(held.data());
      const KernelNode& k = node->launch;
      result = run(k.function, k.grid, k.block, k.shared, arguments.data());
    } else {
      result = copy(node->copy);
    }
    if (result) return result;
  }
  return 0;
}
API int cuGraphExecDestroy(Graph*) { return 0; }
API int cuGraphDestroy(Graph* g) {
  for (Node* node : g->nodes) delete node;
  return delete g, 0;
}
