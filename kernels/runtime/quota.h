// The processor time that Linux's control groups give this process.
#pragma once
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core.h"

namespace tracea {

constexpr int32_t kNoQuota = INT32_MAX;
constexpr size_t kMostRead = 4096;

// The first bytes of a file as text; false if it cannot be read.
inline bool read_text(const char* path, char (&text)[kMostRead]) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t count = read(file, text, sizeof text - 1);
  close(file);
  text[count > 0 ? count : 0] = 0;
  return count > 0;
}

// The number that a text begins with, which is moved past it; -1 where there is none.
inline int64_t read_number(const char** text) {
  int64_t number = -1;
  for (; **text >= '0' && **text <= '9'; ++*text)
    number = min(max(number, 0) * 10 + (**text - '0'), INT64_MAX / 20);
  return number;
}

// Processors that are busy all the time for so many of so many microseconds, rounded up.
inline int32_t processors_of(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return kNoQuota;
  return static_cast<int32_t>(min(ceil_div(quota, period), kNoQuota));
}

// What one group allows by itself: `quota period` in one file of version 2 (`max` means any), in
// two files of version 1 (-1 means any).
inline int32_t quota_of_group(const char* group, bool unified) {
  char path[2 * kMostRead], text[kMostRead];
  snprintf(path, sizeof path, "%s/%s", group, unified ? "cpu.max" : "cpu.cfs_quota_us");
  if (!read_text(path, text)) return kNoQuota;
  const char* at = text;
  const int64_t quota = read_number(&at);
  if (unified) return *at == ' ' ? processors_of(quota, read_number(&++at)) : kNoQuota;
  snprintf(path, sizeof path, "%s/cpu.cfs_period_us", group);
  return read_text(path, text) ? processors_of(quota, read_number(&(at = text))) : kNoQuota;
}

// The least that a group or one around it allows.  A container may see its own group as the root,
// though the system calls it otherwise: groups that are not there allow everything.
inline int32_t quota_around(const char* root, const char* path, bool unified) {
  char group[kMostRead];
  const size_t start = strlen(root);
  if (start + strlen(path) >= sizeof group) return kNoQuota;
  strcpy(group, root), strcat(group, path);
  int64_t least = kNoQuota;
  for (;;) {
    least = min(least, quota_of_group(group, unified));
    char* last = strrchr(group + start, '/');
    if (!last) return static_cast<int32_t>(least);
    *last = 0;
  }
}

// `list` says the groups of a process, a line each: number, controllers, path; they are mounted
// in `mounts`.
inline int32_t read_quota(const char* list, const char* mounts) {
  char text[kMostRead], cpu[kMostRead];
  if (!read_text(list, text)) return kNoQuota;
  snprintf(cpu, sizeof cpu, "%s/cpu", mounts);
  int64_t least = kNoQuota;
  char* rest = nullptr;
  for (char* line = strtok_r(text, "\n", &rest); line; line = strtok_r(nullptr, "\n", &rest)) {
    char* controllers = strchr(line, ':');
    char* path = controllers ? strchr(controllers + 1, ':') : nullptr;
    if (!path) continue;
    *path++ = 0, *controllers++ = 0;
    if (!*controllers) {
      least = min(least, quota_around(mounts, path, true));
      continue;
    }
    char* more = nullptr;
    for (char* one = strtok_r(controllers, ",", &more); one; one = strtok_r(nullptr, ",", &more))
      if (!strcmp(one, "cpu")) least = min(least, quota_around(cpu, path, false));
  }
  return static_cast<int32_t>(least);
}

// That of this process, which is read once.
inline int32_t known_quota() {
  static int32_t known;
  int32_t quota = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (quota) return quota;
  quota = read_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  __atomic_store_n(&known, quota, __ATOMIC_RELAXED);
  return quota;
}

}  // namespace tracea
