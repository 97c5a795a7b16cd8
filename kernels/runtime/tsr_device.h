// What tsr.cpp asks of a kind of device.  A function that fails writes one sentence to `why`.
#pragma once
#include <stdint.h>
#include <stdio.h>

#include "runtime/tracea.h"

struct TsrWhy {
  char text[TRACEA_MAX_ERROR];

  template <class... Parts>
  bool fail(const char* format, Parts... parts) {
    snprintf(text, sizeof text, format, parts...);
    return false;
  }
};

struct TsrDevice {
  TraceaStatus failed;  // what a failure is
  bool (*open)(int32_t device, TsrWhy* why);
  bool (*create_stream)(int32_t device, void** out, TsrWhy* why);
  bool (*destroy_stream)(int32_t device, void* stream, TsrWhy* why);
  bool (*synchronize)(int32_t device, void* stream, TsrWhy* why);
  bool (*allocate)(int32_t device, size_t bytes, void** out, TsrWhy* why);
  bool (*release)(int32_t device, void* memory, TsrWhy* why);
  bool (*to_device)(int32_t device, void* stream, void* to, const void* from, size_t bytes, TsrWhy* why);
  bool (*to_host)(int32_t device, void* stream, void* to, const void* from, size_t bytes, TsrWhy* why);
};

// GPUs, if the library was built with a backend for them.
extern "C" __attribute__((weak)) const TsrDevice* tsr_gpus(void);
