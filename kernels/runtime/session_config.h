// Whether a session's threads may spin while they wait, which its options say.
#pragma once
#include "runtime/core.h"
#include "runtime/inputs.h"
#include "runtime/ort_abi.h"

namespace tracea {

constexpr const char* kSpinning = "session.intra_op.allow_spinning";

// ONNX Runtime tells a node its session's configuration since 1.24.  Before, a library sees the
// options it is registered with, as far as they are set by then; its sessions share what it saw last.
struct SessionConfig {
  bool by_node;
  int32_t no_spinning;  // of the last options
};

inline bool tells_config(const char* version) { return minor_version(version) >= 24; }

inline bool forbids(const char* value) { return value && !strcmp(value, "0"); }

inline void note_spinning(const OrtApi* api, const OrtSessionOptions* options, SessionConfig& config) {
  int found = 0;
  char value[16] = "";
  size_t size = sizeof value;
  if (config.by_node) return;
  OrtStatus* status = ort::HasSessionConfigEntry(api, options, kSpinning, &found);
  if (!status && found) status = ort::GetSessionConfigEntry(api, options, kSpinning, value, &size);
  __atomic_store_n(&config.no_spinning, !status && found && forbids(value), __ATOMIC_RELAXED);
  if (status) ort::ReleaseStatus(api, status);
}

inline bool may_spin(const OrtApi* api, const OrtKernelInfo* info, const SessionConfig& config) {
  if (!config.by_node) return !__atomic_load_n(&config.no_spinning, __ATOMIC_RELAXED);
  OrtKeyValuePairs* entries = nullptr;
  if (OrtStatus* status = ort::KernelInfo_GetConfigEntries(api, info, &entries))
    return ort::ReleaseStatus(api, status), true;
  const bool forbidden = forbids(ort::GetKeyValue(api, entries, kSpinning));
  return ort::ReleaseKeyValuePairs(api, entries), !forbidden;
}

}  // namespace tracea
