/* A backend's runtime in plain C: a node's plan is read anew with every run. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ONNX Runtime's C ABI: a table of functions by number ---- */
typedef struct Op { /* 26 words; those that stay 0 are optional */
  uint64_t version;
  void* create_v1;
  const char* (*name)(const struct Op*);
  const char* (*provider)(const struct Op*);
  int (*input_type)(const struct Op*, size_t);
  size_t (*inputs)(const struct Op*);
  int (*output_type)(const struct Op*, size_t);
  size_t (*outputs)(const struct Op*);
  void* compute_v1;
  void (*destroy)(void*);
  int (*input_kind)(const struct Op*, size_t);
  int (*output_kind)(const struct Op*, size_t);
  int (*input_memory)(const struct Op*, size_t);
  void* variadic[4];
  void* (*create)(const struct Op*, void* const*, const void*, void**);
  void* (*compute)(void*, void*);
  void* infer;
  int (*since)(const struct Op*);
  void* rest[5];
  const char* type; /* ours: its name, element types of inputs and outputs, and how many */
  const int* elements;
  size_t counts[2];
} Op;
typedef struct { const Op* op; void* const* api; int64_t words[]; } Node;
#define API(slot, ...) (((void* (*)(__VA_ARGS__))api[slot]))
#define TRY(call) if ((status = (call))) return status

/* ---- views, and walking along them ---- */
typedef struct { char* data; int64_t size, rank, dims[8], steps[8]; } View;
typedef void Chain(int64_t count, char** at, const int64_t* steps);
typedef void Body(const View* views, int64_t count, char** at, const int64_t* ints, Chain* f);

/* Calls `body` at every position of the outer axes, which are those of the first view. */
static void walk(const View* v, int64_t count, int inner, Body* body, const int64_t* ints,
                 Chain* f) {
  int64_t at[8] = {0}, outer = v->rank - inner, axis;
  char* place[16];
  for (axis = 0; axis < outer; ++axis) if (v->dims[axis] < 1) return;
  do {
    for (int64_t i = 0; i < count; ++i) {
      place[i] = v[i].data;
      for (axis = 0; axis < outer; ++axis) place[i] += at[axis] * v[i].steps[axis] * v[i].size;
    }
    body(v, count, place, ints, f);
    for (axis = outer - 1; axis >= 0 && ++at[axis] == v->dims[axis]; --axis) at[axis] = 0;
  } while (axis >= 0);
}

/* ---- the kernels ---- */
static void elementwise(const View* v, int64_t count, char** at, const int64_t* ints, Chain* f) {
  int64_t last = v->rank - 1, steps[16];
  for (int64_t i = 0; i < count; ++i) steps[i] = v[i].steps[last] * v[i].size;
  f(v->dims[last], at, steps);
}

static void copy(const View* v, int64_t count, char** at, const int64_t* ints, Chain* f) {
  int64_t last = v->rank - 1, size = v->size;
  for (int64_t i = 0; i < v->dims[last]; ++i)
    memcpy(at[1] + i * v[1].steps[last] * size, at[0] + i * v->steps[last] * size, (size_t)size);
}

/* y[m, n] = sum of a[m, k] b[k, n], after bias[m, n] if there are four views */
static void product(const View* v, int64_t count, char** at, const int64_t* ints, Chain* f) {
  int64_t r = v->rank - 2, c = r + 1, rows = v->dims[r], columns = v->dims[c], depth = v[1].dims[c];
  int64_t next = v[2].steps[c];
  for (int64_t m = 0; m < rows; ++m) {
    float* y = (float*)at[0] + m * v->steps[r];
    for (int64_t n = 0; n < columns; ++n)
      y[n] = count < 4 ? 0 : ((float*)at[3])[m * v[3].steps[r] + n * v[3].steps[c]];
    for (int64_t k = 0; k < depth; ++k) {
      float x = ((float*)at[1])[m * v[1].steps[r] + k * v[1].steps[c]];
      const float* w = (float*)at[2] + k * v[2].steps[r];
      if (next == 1) for (int64_t n = 0; n < columns; ++n) y[n] += x * w[n];
      else for (int64_t n = 0; n < columns; ++n) y[n] += x * w[n * next];
    }
  }
}

static void norm(const View* v, int64_t count, char** at, const int64_t* ints, Chain* f) {
  int64_t last = v->rank - 1, n = v->dims[last];
  double mean = 0, square = 0, epsilon;
  const float* x = (float*)at[0];
  float* y = (float*)at[1];
  memcpy(&epsilon, &ints[1], sizeof epsilon);
  for (int64_t i = 0; ints[0] && i < n; ++i) mean += x[i * v->steps[last]] / (double)n;
  for (int64_t i = 0; i < n; ++i) {
    double d = x[i * v->steps[last]] - mean;
    square += d * d / (double)n;
  }
  for (int64_t i = 0; i < n; ++i)
    y[i * v[1].steps[last]] = (float)((x[i * v->steps[last]] - mean) / sqrt(square + epsilon));
}

static void softmax(const View* v, int64_t count, char** at, const int64_t* ints, Chain* f) {
  int64_t last = v->rank - 1, n = v->dims[last];
  const float* x = (float*)at[0];
  float *y = (float*)at[1], most = -INFINITY;
  double total = 0;
  for (int64_t i = 0; i < n; ++i)
    if (!(x[i * v->steps[last]] <= most)) most = x[i * v->steps[last]];
  for (int64_t i = 0; i < n; ++i) total += exp(x[i * v->steps[last]] - most);
  for (int64_t i = 0; i < n; ++i) {
    double d = x[i * v->steps[last]] - most;
    y[i * v[1].steps[last]] = (float)(ints[0] ? d - log(total) : exp(d) / total);
  }
}

static void same(const View* v, int64_t count, char** at, const int64_t* ints, Chain* f) {
  int64_t bytes = v->size;
  for (int64_t axis = 0; axis < v->rank; ++axis) bytes *= v->dims[axis];
  *at[2] = (ints[0] || *at[2]) && !memcmp(at[0], at[1], (size_t)bytes);
}

/* ---- what chains are written with: a vector is one number ---- */
typedef float vf;
typedef int vm;
#define set1(a) (a)
#define select(m, a, b) ((m) ? (a) : (b))
#define less(a, b) ((a) < (b))
#define equal(a, b) ((a) == (b))
#define both(a, b) ((a) && (b))
#define either(a, b) ((a) || (b))
#define invert(a) (!(a))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define abs fabsf
#define sqrt sqrtf
#define v_exp expf
#define v_log logf
#define v_erf erff
#define v_tanh tanhf
#define v_pow powf
#define v_root(a) ((a) == -INFINITY ? INFINITY : sqrtf(a) + 0.0f)
#define v_max(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define v_min(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define v_sigmoid(a) (1 / (1 + expf(-(a))))
#define v_gelu(a) ((a) * erfcf((a) * -0x1.6a09e6p-1f) / 2)
#define gated(a, b) ((a) / (1 + expf(-(b))))

/* ---- what is generated: the domain, the op types, and a function for every chain ---- */
@GENERATED@

/* ---- plans ---- */
static int64_t extent(const int64_t** p, const int64_t* symbols) {
  int64_t stack[64], top = 0;
  const int64_t* end = *p + 1 + **p;
  for (++*p; *p < end;) {
    int64_t what = *(*p)++, b;
    if (what < 2) { stack[top++] = what ? symbols[**p] : **p; ++*p; continue; }
    b = stack[--top];
    int64_t* a = &stack[top - 1];
    *a = what == 2 ? *a + b : what == 3 ? *a - b : what == 4 ? *a * b :
         what == 5 ? *a / b : what == 6 ? (*a + b - 1) / b : what == 7 ? (*a > b ? *a : b) :
         (*a < b ? *a : b);
  }
  return stack[0];
}

static View view(const int64_t** p, const int64_t* symbols, char** buffers) {
  View v = {buffers[(*p)[0]], (*p)[1], (*p)[2], {0}, {0}};
  *p += 3;
  v.data += extent(p, symbols) * v.size;
  for (int64_t i = 0; i < v.rank; ++i) v.dims[i] = extent(p, symbols);
  for (int64_t i = 0; i < v.rank; ++i) v.steps[i] = extent(p, symbols);
  return v;
}

static void run(const int64_t* p, int64_t calls, const int64_t* symbols, char** buffers) {
  static const struct { Body* body; int inner; } KERNELS[] = {
      {elementwise, 1}, {copy, 1}, {product, 2}, {norm, 1}, {softmax, 1}, {same, 8}};
  while (calls-- > 0) {
    int64_t kernel = *p++, chain = *p++, count = *p++;
    const int64_t* ints = p;
    View views[16];
    p += 2;
    for (int64_t i = 0; i < count; ++i) views[i] = view(&p, symbols, buffers);
    walk(views, count, KERNELS[kernel].inner, KERNELS[kernel].body, ints, chain_of(chain));
  }
}

static void* fail(void* const* api, const Op* op, const char* what) {
  char text[256];
  snprintf(text, sizeof text, "%.100s: %s", op->type, what);
  return API(0, int, const char*)(2, text);
}

static void* compute(void* kernel, void* context) {
  const Node* node = (const Node*)kernel;
  void* const* api = node->api;
  const int64_t *p = node->words, *head = p;
  int64_t inputs = p[0], outputs = p[1], bound = p[2], temps = p[3];
  int64_t symbols[64], dims[32][8];
  char* buffers[128];
  void *status, *value, *info;
  p += 5;
  for (int64_t i = 0; i < inputs; ++i) {
    size_t rank;
    TRY(API(90, const void*, size_t, void**)(context, (size_t)i, &value));
    TRY(API(65, void*, void**)(value, &info));
    status = API(61, void*, size_t*)(info, &rank);
    if (!status && rank <= 8) status = API(62, void*, int64_t*, size_t)(info, dims[i], rank);
    ((void (*)(void*))api[99])(info);
    if (status) return status;
    if ((int64_t)rank != p[2 * bound + i]) return fail(api, node->op, "an input has another rank");
    TRY(API(51, void*, void**)(value, (void**)&buffers[i]));
  }
  for (int64_t i = 0; i < bound; ++i) symbols[i] = dims[p[2 * i]][p[2 * i + 1]];
  const int64_t* ranks = p + 2 * bound;
  p = ranks + inputs + outputs;
  for (int64_t i = 0; i < inputs; ++i)
    for (int64_t axis = 0; axis < ranks[i]; ++axis)
      if (extent(&p, symbols) != dims[i][axis])
        return fail(api, node->op, "an input has another size");
  for (int64_t i = inputs; i < inputs + outputs; ++i) {
    int64_t sizes[8];
    for (int64_t axis = 0; axis < ranks[i]; ++axis) sizes[axis] = extent(&p, symbols);
    TRY(API(91, void*, size_t, const int64_t*, size_t, void**)(
        context, (size_t)(i - inputs), sizes, (size_t)ranks[i], &value));
    TRY(API(51, void*, void**)(value, (void**)&buffers[i]));
  }
  char** scratch = &buffers[inputs + outputs];
  int lacking = 0;
  for (int64_t i = 0; i < temps; ++i)
    lacking |= !(scratch[i] = (char*)malloc((size_t)extent(&p, symbols) + 1));
  if (!lacking) run(p, head[4], symbols, buffers);
  for (int64_t i = 0; i < temps; ++i) free(scratch[i]);
  return lacking ? fail(api, node->op, "there is no memory") : NULL;
}

/* ---- what ONNX Runtime asks of an op type ---- */
static void* create(const Op* op, void* const* api, const void* info, void** kernel) {
  size_t count = 0;
  void* status;
  TRY(API(163, const void*, const char*, int64_t*, size_t*)(info, "plan", NULL, &count));
  Node* node = (Node*)malloc(sizeof(Node) + count * sizeof(int64_t));
  if (!node) return fail(api, op, "there is no memory");
  node->op = op;
  node->api = api;
  status = API(163, const void*, const char*, int64_t*, size_t*)(info, "plan", node->words, &count);
  if (status) free(node);
  else *kernel = node;
  return status;
}

static const char* name(const Op* op) { return op->type; }
static const char* provider(const Op* op) { return NULL; }
static int input_type(const Op* op, size_t i) { return op->elements[i]; }
static int output_type(const Op* op, size_t i) { return op->elements[op->counts[0] + i]; }
static size_t inputs(const Op* op) { return op->counts[0]; }
static size_t outputs(const Op* op) { return op->counts[1]; }
static int none(const Op* op, size_t i) { return 0; }
static int since(const Op* op) { return 1; }

__attribute__((visibility("default"))) void* RegisterCustomOps(void* options, void* const* base) {
  static void* domain;
  void* const* api = ((void* const* (*)(uint32_t))base[0])(17);
  void* status;
  if (!domain) {
    void* made;
    TRY(API(26, const char*, void**)(DOMAIN_NAME, &made));
    for (Op* op = OPS; op->type; ++op) {
      op->version = 17;
      op->name = name, op->provider = provider, op->since = since;
      op->input_type = input_type, op->output_type = output_type;
      op->inputs = inputs, op->outputs = outputs;
      op->input_kind = none, op->output_kind = none, op->input_memory = none;
      op->create = create, op->compute = compute, op->destroy = free;
      TRY(API(27, void*, const void*)(made, op));
    }
    domain = made;
  }
  return API(28, void*, void*)(options, domain);
}
