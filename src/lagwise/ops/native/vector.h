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
typedef unsigned words __attribute__((vector_size(BYTES))); /* without a sign, so that sums may wrap around */
typedef unsigned short halves __attribute__((vector_size(BYTES / 2)));

static inline vector every(float value) { return value - (vector){0}; }

static inline vector choose(words where, vector yes, vector no) {
    return (vector)((where & (words)yes) | (~where & (words)no));
}

/* 1 / (1 + e^-x): e^r with |r| <= ln 2 / 2 by its series, times a power of two. NaN for NaN is up to the caller. */
static inline vector sigmoid(vector x) {
    const vector largest = every(87.0f), rounding = every(12582912.0f); /* 1.5 * 2^23: adding it rounds */
    const vector z = choose((words)(x > largest), -largest, choose((words)(x < -largest), largest, -x));
    const vector shifted = z * 1.44269504f + rounding, n = shifted - rounding;
    const vector r = (z - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts, the first of few bits */
    vector e = every(1.0f / 5040);
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    e = (vector)((words)e + (((words)shifted - (words)rounding) << 23));
    return choose((words)(x < -largest), every(0), 1.0f / (1.0f + e)); /* 0 times x is 0, but 1e-38 times x may not be */
}

/* The derivative of x sigmoid(x), from x and sigmoid(x). */
static inline vector silu_slope(vector x, vector share) { return share * (1.0f + x * (1.0f - share)); }

/* LANES channels, or `width` if that is less, from an element on; in bfloat16 or float32. */
static inline vector get(const void *from, long at, long width, int bfloat16) {
    if (!bfloat16) {
        vector x = {0};
        if (width >= LANES) memcpy(&x, (const float *)from + at, sizeof x);
        else memcpy(&x, (const float *)from + at, width * sizeof(float));
        return x;
    }
    halves x = {0};
    if (width >= LANES) memcpy(&x, (const short *)from + at, sizeof x);
    else memcpy(&x, (const short *)from + at, width * sizeof(short));
    return (vector)(__builtin_convertvector(x, words) << 16);
}

static inline void put(void *to, long at, vector x, long width, int bfloat16) {
    if (!bfloat16) {
        if (width >= LANES) memcpy((float *)to + at, &x, sizeof x);
        else memcpy((float *)to + at, &x, width * sizeof(float));
        return;
    }
    const words bits = (words)x, rounded = bits + 0x7fff + ((bits >> 16) & 1); /* to the nearest, ties to even */
    const words quiet = bits | 0x400000;                                       /* NaN stays NaN */
    const words kept = ((words)(x != x) & quiet) | ((words)(x == x) & rounded);
    const halves half = __builtin_convertvector((kept >> 16) & 0xffff, halves);
    if (width >= LANES) memcpy((short *)to + at, &half, sizeof half);
    else memcpy((short *)to + at, &half, width * sizeof(short));
}

static inline const char *element(const void *from, long at, int bfloat16) {
    return (const char *)from + at * (bfloat16 ? sizeof(short) : sizeof(float));
}

/* Have the processor load elements before `get` or `put` needs them. An element past the end is no error. */
static inline void will_get(const void *from, long at, int bfloat16) {
    __builtin_prefetch(element(from, at, bfloat16), 0);
}

static inline void will_put(const void *to, long at, int bfloat16) { __builtin_prefetch(element(to, at, bfloat16), 1); }
