#include "base/portable.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <thread>

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <dlfcn.h>
#include <sched.h>
#endif

namespace structgen {

#if defined(__linux__)

int processor() { return sched_getcpu(); }

// hardware_concurrency() also counts those that the process may not use.
unsigned processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::max(1U, std::thread::hardware_concurrency());
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&allowed)));
}

void leave(int processor) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<size_t>(processor), &others);
  if (CPU_COUNT(&others) != 0 && sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

AnyFunction loaded_function(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  return handle == nullptr ? nullptr : reinterpret_cast<AnyFunction>(dlsym(handle, name));
}

#else

int processor() { return -1; }
unsigned processors() { return std::max(1U, std::thread::hardware_concurrency()); }
void leave(int) {}
AnyFunction loaded_function(const char*, const char*) { return nullptr; }

#endif

#if defined(_WIN32)

int64_t process_id() { return static_cast<int64_t>(GetCurrentProcessId()); }

void* zero_pages(size_t bytes) {
  void* const pages = VirtualAlloc(nullptr, std::max<size_t>(bytes, 1), MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (pages == nullptr) throw std::bad_alloc();
  return pages;
}

void free_pages(void* pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }

#else

int64_t process_id() { return getpid(); }

void* zero_pages(size_t bytes) {
  void* const pages = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return pages;
}

void free_pages(void* pages, size_t bytes) { munmap(pages, std::max<size_t>(bytes, 1)); }

#endif

}  // namespace structgen
