/* Transforms of real signals, LANES channels at a time.

   A signal of 2 n real values on a circle whose second round has the opposite sign is a polynomial modulo X^(2 n) + 1,
   and as complex numbers, x_j + i x_(j + n), one modulo X^n - i. Its transform is its values at the n roots of X^n = i:
   products of transforms are convolutions on that circle, and those with a conjugate are correlations. Real signals
   thus need half as many complex points, without anything to unpack, and no signal meets another.

   Values modulo X^m - r are found from those modulo X^(m / R) - s w^k, with s^R = r and w = e^(2 pi i / R): a pass
   multiplies the q-th of R equal parts by s^q, and transforms across the parts. So the factors of a pass are the same
   for all of its points; transforms come out in an order that only `inverse` and products of transforms need to know;
   and after a pass, its parts have nothing to do with each other, and are treated one after the other in the caches. */

#pragma once

#include "vector.h"

typedef struct {
    vector re, im;
} point;

enum { FORWARD = 1, INVERSE = -1 };

static inline point plus(point a, point b) { return (point){a.re + b.re, a.im + b.im}; }

static inline point minus(point a, point b) { return (point){a.re - b.re, a.im - b.im}; }

static inline point times(point a, point b) {
    return (point){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static inline point times_conjugate(point a, point b) {
    return (point){a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
}

/* a i, or -a i */
static inline point turned(point a, int sign) {
    return sign > 0 ? (point){-a.im, a.re} : (point){a.im, -a.re};
}

static inline __attribute__((always_inline)) void dft4(point *a, point *b, point *c, point *d, int sign) {
    const point even = plus(*a, *c), odd = plus(*b, *d), low = minus(*a, *c), high = turned(minus(*b, *d), sign);
    *a = plus(even, odd);
    *b = plus(low, high);
    *c = minus(even, odd);
    *d = minus(low, high);
}

/* a[k] = sum over q of a[q] e^(sign 2 pi i q k / 8) */
static inline __attribute__((always_inline)) void dft8(point *a, int sign) {
    dft4(&a[0], &a[2], &a[4], &a[6], sign);
    dft4(&a[1], &a[3], &a[5], &a[7], sign);
    const float root = 0.70710678f;
    point odd[4] = {a[1], a[3], turned(a[5], sign), a[7]}, even[4] = {a[0], a[2], a[4], a[6]};
    odd[1] = plus(a[3], turned(a[3], sign));
    odd[3] = minus(turned(a[7], sign), a[7]);
    for (int k = 1; k < 4; k += 2) odd[k] = (point){odd[k].re * root, odd[k].im * root};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        a[k] = plus(even[k], odd[k]);
        a[k + 4] = minus(even[k], odd[k]);
    }
}

/* Likewise for 3 or 5 points: cosines act on sums of opposite points, sines on their differences. */
static inline __attribute__((always_inline)) void dft_odd(point *a, int radix, int sign) {
    static const float cosines[2][3] = {{1, -0.5f, -0.5f}, {1, 0.30901699f, -0.80901699f}};
    static const float sines[2][3] = {{0, 0.86602540f, -0.86602540f}, {0, 0.95105652f, 0.58778525f}};
    const int half = radix / 2;
    point sums[2], differences[2];
    for (int q = 1; q <= half; q++) {
        sums[q - 1] = plus(a[q], a[radix - q]);
        differences[q - 1] = turned(minus(a[q], a[radix - q]), sign);
    }
    const point first = a[0];
    for (int q = 0; q < half; q++) a[0] = plus(a[0], sums[q]);
    for (int k = 1; k <= half; k++) {
        point even = first, odd = {0};
        for (int q = 1; q <= half; q++) {
            const int turns = q * k % radix, mirrored = turns > half ? radix - turns : turns;
            const float cosine = cosines[half - 1][mirrored];
            const float sine = turns > half ? -sines[half - 1][mirrored] : sines[half - 1][mirrored];
            even = (point){even.re + sums[q - 1].re * cosine, even.im + sums[q - 1].im * cosine};
            odd = (point){odd.re + differences[q - 1].re * sine, odd.im + differences[q - 1].im * sine};
        }
        a[k] = plus(even, odd);
        a[radix - k] = minus(even, odd);
    }
}

static inline __attribute__((always_inline)) void dft(point *a, int radix, int sign) {
    if (radix == 2) {
        const point sum = plus(a[0], a[1]);
        a[1] = minus(a[0], a[1]);
        a[0] = sum;
    } else if (radix == 4) {
        dft4(&a[0], &a[1], &a[2], &a[3], sign);
    } else if (radix == 8) {
        dft8(a, sign);
    } else {
        dft_odd(a, radix, sign);
    }
}

/* One pass over m points. roots: s, s^2, ..., s^(radix - 1). */
static inline __attribute__((always_inline)) void pass_of(point *z, long m, int radix, const float *roots, int sign) {
    const long part = m / radix;
    for (long j = 0; j < part; j++) {
        point a[8];
#pragma GCC unroll 8
        for (int q = 0; q < radix; q++) a[q] = z[j + q * part];
        if (sign == INVERSE) dft(a, radix, sign);
#pragma GCC unroll 8
        for (int q = 1; q < radix; q++) {
            const point root = {every(roots[2 * q - 2]), every(roots[2 * q - 1])};
            a[q] = sign == FORWARD ? times(a[q], root) : times_conjugate(a[q], root);
        }
        if (sign == FORWARD) dft(a, radix, sign);
#pragma GCC unroll 8
        for (int q = 0; q < radix; q++) z[j + q * part] = a[q];
    }
}

/* The radix of the first pass over m points: as many of 8 as leave nothing but 4. */
static inline int radix_of(long m) {
    if (m % 3 == 0) return 3;
    if (m % 5 == 0) return 5;
    const int bits = __builtin_ctzl(m);
    return bits % 3 == 0 ? 8 : bits == 1 ? 2 : 4;
}

/* The roots of part k, after a pass over m points. Those of m points take m - 1 complex numbers: the pass's own, and
   then those of its parts. */
static inline const float *roots_of(const float *roots, long m, int radix, int k) {
    return roots + 2 * (radix - 1 + k * (m / radix - 1));
}

static void pass(point *z, long m, int radix, const float *roots, int sign) {
    switch (radix * sign) {
        case 2 * FORWARD: return pass_of(z, m, 2, roots, FORWARD);
        case 3 * FORWARD: return pass_of(z, m, 3, roots, FORWARD);
        case 4 * FORWARD: return pass_of(z, m, 4, roots, FORWARD);
        case 5 * FORWARD: return pass_of(z, m, 5, roots, FORWARD);
        case 8 * FORWARD: return pass_of(z, m, 8, roots, FORWARD);
        case 2 * INVERSE: return pass_of(z, m, 2, roots, INVERSE);
        case 3 * INVERSE: return pass_of(z, m, 3, roots, INVERSE);
        case 4 * INVERSE: return pass_of(z, m, 4, roots, INVERSE);
        case 5 * INVERSE: return pass_of(z, m, 5, roots, INVERSE);
        case 8 * INVERSE: return pass_of(z, m, 8, roots, INVERSE);
    }
}

/* The transform of m points, or its inverse times m. */
static inline __attribute__((always_inline)) void two_passes(point *z, long m, int first, const float *roots,
                                                             int sign) {
    const long part = m / first;
    if (sign == FORWARD) pass_of(z, m, first, roots, FORWARD);
    for (int k = 0; k < first; k++) pass_of(z + k * part, part, part, roots_of(roots, m, first, k), sign);
    if (sign == INVERSE) pass_of(z, m, first, roots, INVERSE);
}

static void transform(point *z, long m, const float *roots, int sign) {
    switch (m * sign) {
        case FORWARD: case INVERSE: return;
        case 16 * FORWARD: return two_passes(z, 16, 4, roots, FORWARD);
        case 32 * FORWARD: return two_passes(z, 32, 4, roots, FORWARD);
        case 64 * FORWARD: return two_passes(z, 64, 8, roots, FORWARD);
        case 16 * INVERSE: return two_passes(z, 16, 4, roots, INVERSE);
        case 32 * INVERSE: return two_passes(z, 32, 4, roots, INVERSE);
        case 64 * INVERSE: return two_passes(z, 64, 8, roots, INVERSE);
    }
    const int radix = radix_of(m);
    const long part = m / radix;
    if (sign == FORWARD) pass(z, m, radix, roots, FORWARD);
    for (int k = 0; k < radix; k++) transform(z + k * part, part, roots_of(roots, m, radix, k), sign);
    if (sign == INVERSE) pass(z, m, radix, roots, INVERSE);
}
