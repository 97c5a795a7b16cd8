// Asks whether threads may spin, of a runtime of version 1.MINOR whose session's option has a VALUE
// ("-": not set).  Prints the answer, and how many objects were not given back.
#include "runtime/session_config.h"

struct OrtStatus {};

namespace {

const char* value;
int kept = 0;

template <class Function>
void set(void** table, size_t slot, Function function) {
  table[slot] = reinterpret_cast<void*>(+function);
}

}  // namespace

int main(int, char** argv) {
  using namespace tracea;
  value = strcmp(argv[2], "-") ? argv[2] : nullptr;
  static void* table[ort::kSlots];
  set(table, ort::kReleaseStatus, [](OrtStatus*) { --kept; });
  set(table, ort::kHasSessionConfigEntry, [](const OrtSessionOptions*, const char* key, int* found) {
    *found = value && !strcmp(key, kSpinning);
    return static_cast<OrtStatus*>(nullptr);
  });
  set(table, ort::kGetSessionConfigEntry,
      [](const OrtSessionOptions*, const char*, char* out, size_t* size) -> OrtStatus* {
        static OrtStatus too_long;
        if (strlen(value) >= *size) return ++kept, &too_long;
        return strcpy(out, value), nullptr;
      });
  if (minor_version(argv[1]) >= 24) {  // older tables end before these
    set(table, ort::kKernelInfo_GetConfigEntries, [](const OrtKernelInfo*, OrtKeyValuePairs** out) {
      ++kept, *out = reinterpret_cast<OrtKeyValuePairs*>(table);
      return static_cast<OrtStatus*>(nullptr);
    });
    set(table, ort::kGetKeyValue, [](const OrtKeyValuePairs*, const char* key) -> const char* {
      return strcmp(key, kSpinning) ? nullptr : value;
    });
    set(table, ort::kReleaseKeyValuePairs, [](OrtKeyValuePairs*) { --kept; });
  }
  const OrtApi* api = reinterpret_cast<const OrtApi*>(table);
  SessionConfig config = {tells_config(argv[1]), 0};
  note_spinning(api, nullptr, config);
  printf("%d ", may_spin(api, nullptr, config));
  printf("%d\n", kept);
}
