// Ranges for NVIDIA's profilers, with TRACEA_NVTX=1 and the library there (libnvtx3interop.so of the
// wheel nvidia-nvtx, or the toolkit's older libnvToolsExt.so), or TRACEA_NVTX=FILE: one around every run
// of a node, and in it one around each call, named by its phase and kernel ("mma: gemm").
#pragma once
#include "runtime/core.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#if defined(__GLIBC__)
// As in runtime/thread_pool.h: before 2.34 they lie in a library of their own, which may be missing.
#if __GLIBC_MINOR__ < 34
#elif defined(__x86_64__)
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlopen,dlopen@GLIBC_2.17");
__asm__(".symver dlsym,dlsym@GLIBC_2.17");
#endif
#pragma weak dlopen
#pragma weak dlsym
#endif
#endif

namespace tracea {

struct Nvtx {
  int (*push)(const char*);
  int (*pop)(void);
};

// Whether the process has what opens libraries.
inline bool has_loader() {
#if defined(__GLIBC__)
  return dlopen && dlsym;
#else
  return true;
#endif
}

// Null where nobody asks for ranges, or, if any library will do, where there is none.
inline const Nvtx* find_nvtx(Error& error) {
  static Nvtx found = {};
  const char* asked = getenv("TRACEA_NVTX");
  if (!asked || !*asked || !strcmp(asked, "0")) return nullptr;
#if !defined(_WIN32)
  const char* usual[] = {"libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", nullptr};
  const char* named[] = {asked, nullptr};
  const bool any = !strcmp(asked, "1");
  for (const char** name = any ? usual : named; *name && has_loader(); ++name) {
    void* library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    found.push = reinterpret_cast<int (*)(const char*)>(dlsym(library, "nvtxRangePushA"));
    found.pop = reinterpret_cast<int (*)(void)>(dlsym(library, "nvtxRangePop"));
    if (found.push && found.pop) return &found;
  }
  if (any) return nullptr;
#endif
  return error.fail("TRACEA_NVTX names %.300s, which is no library of NVTX.", asked), nullptr;
}

}  // namespace tracea
