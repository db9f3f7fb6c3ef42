// Versions of a function for wider registers; one is chosen when the program is loaded.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define STRUCTGEN_WIDE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define STRUCTGEN_WIDE
#endif
