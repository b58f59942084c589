/* Vectors of channels, one register wide. */

#pragma once

#include <string.h>

#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
enum { LANES = BYTES / sizeof(float) };

typedef float vector __attribute__((vector_size(BYTES)));
