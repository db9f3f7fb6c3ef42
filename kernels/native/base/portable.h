// All that is not the same with every compiler and on every system; the rest is ISO C++20.
#pragma once

#include <cstddef>
#include <cstdint>

// GCC and Clang, which have the extensions below.  STRUCTGEN_ISO leaves them out, to try what other compilers get.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(STRUCTGEN_ISO)
#define STRUCTGEN_GNU 1
#else
#define STRUCTGEN_GNU 0
#endif

// Always inlined: where a call would cost more than the function, or keep a loop from vectorizing.
#if STRUCTGEN_GNU
#define STRUCTGEN_INLINE [[gnu::always_inline]] inline
#elif defined(_MSC_VER)
#define STRUCTGEN_INLINE __forceinline
#else
#define STRUCTGEN_INLINE inline
#endif

// A second version of a function for wider registers; one is chosen when the program is loaded.
#if STRUCTGEN_GNU && defined(__x86_64__) && !defined(__clang__) && defined(__gnu_linux__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STRUCTGEN_WIDE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define STRUCTGEN_WIDE
#endif

// Systems with threads; without them, loops run in the caller.
#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__)
#define STRUCTGEN_THREADS 0
#else
#define STRUCTGEN_THREADS 1
#endif

namespace structgen {

inline void prefetch([[maybe_unused]] const void* address) {
#if STRUCTGEN_GNU
  __builtin_prefetch(address);
#endif
}

// Four numbers in one register: a loop over the lanes of an array is not vectorized where it takes a maximum.
#if STRUCTGEN_GNU
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
STRUCTGEN_INLINE void add(Four& to, const Four& row, double weight) { to = row + weight; }
STRUCTGEN_INLINE void take_larger(Four& held, const Four& other) { held = held > other ? held : other; }
#else
struct Four {
  double lanes[4];
};
STRUCTGEN_INLINE void add(Four& to, const Four& row, double weight) {
  for (size_t lane = 0; lane < 4; ++lane) to.lanes[lane] = row.lanes[lane] + weight;
}
STRUCTGEN_INLINE void take_larger(Four& held, const Four& other) {
  for (size_t lane = 0; lane < 4; ++lane) held.lanes[lane] = held.lanes[lane] > other.lanes[lane] ? held.lanes[lane] : other.lanes[lane];
}
#endif

// The processor that runs the calling thread; -1 where the system does not tell.
int processor();

// The number of processors that this process may use, at least 1.
unsigned processors();

// Moves the calling thread to another processor that it may use, if there is one; from there on the system is free again.
void leave(int processor);

// Tells a process from the one that it was forked from.
int64_t process_id();

// Zeros, which take no memory where nothing is written.  Throws std::bad_alloc.
void* zero_pages(size_t bytes);
void free_pages(void* pages, size_t bytes);

// A function of a library that this process has loaded already; null where it has not, or the system does not tell.
using AnyFunction = void (*)();
AnyFunction loaded_function(const char* library, const char* name);

}  // namespace structgen
