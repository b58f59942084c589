/* Convolutions of signals (batch, length, channels) with a kernel for every channel, and their gradients; plain, or with
   the gates of a unit y = silu(gate) * (kernel * silu(value)) applied while signals are read and written.

   A signal is cut into frames of 2 n tokens on a circle (transform.h): index j of frame f is token f hop - start + j.
   Outputs of a frame are valid from index `start` on, `hop` of them. The kernel may be cut into parts of hop lags, of
   which part p of frame f - p acts on frame f. A task transforms the kernels of as many groups of channels as fill lines
   of memory, and then treats row by row: group by group, so that the second finds the first's lines in the caches, and
   within it all frames that meet, which is one, or all of a row if the kernel has several parts. */

#include <math.h>
#include <omp.h>

#include "transform.h"

/* Points of a block: below this, all steps between a signal and its product are made while they are in the first cache.
   Tokens between asking for channels and their use. */
enum { BLOCK = 64, AHEAD = 8 };

typedef struct {
    long batch, length, channels;
    long taps, origin;              /* number of taps, and which of them is of lag 0 */
    long n, frames, hop, start, parts;
    long bfloat16, threads;
} sizes;

/* Elements from one row to the next, and from one token to the next; channels are neighbours. */
typedef struct {
    void *data;
    long row, token;
} signal;

/* What happens to the blocks of a transform between its passes. */
enum { NOTHING, PRODUCT, GRADIENT };

typedef struct {
    long n, frames, parts;
    int step;
    point *in;           /* frames transformed before the step, unless NULL */
    point *out;          /* frames transformed back after it, unless NULL */
    const point *signal; /* spectra of the signal's frames */
    const point *kernel; /* those of the kernel's parts */
    point *sums;         /* those of the kernel's gradient, unless NULL */
} course;

/* Spectra of frames, from `at` on. PRODUCT: out_f = sum_p signal_(f - p) kernel_p, where out may be the signal.
   GRADIENT: sums_p += sum_f in_(f + p) conj(signal_f), and then out_f = sum_p in_(f + p) conj(kernel_p), in place. */
static void step(const course *c, long at, long m) {
    const long n = c->n;
    if (c->step == PRODUCT) {
        for (long f = c->frames - 1; f >= 0; f--) {
            point *out = c->out + f * n + at;
            for (long p = 0; p < c->parts && p <= f; p++) {
                const point *from = c->signal + (f - p) * n + at, *kernel = c->kernel + p * n + at;
                if (p == 0) for (long j = 0; j < m; j++) out[j] = times(from[j], kernel[j]);
                else for (long j = 0; j < m; j++) out[j] = plus(out[j], times(from[j], kernel[j]));
            }
        }
    } else if (c->step == GRADIENT) {
        for (long f = 0; f < c->frames; f++) {
            point *here = c->in + f * n + at;
            for (long p = 0; p < c->parts && f + p < c->frames; p++) {
                const point *later = here + p * n, *from = c->signal + f * n + at, *kernel = c->kernel + p * n + at;
                if (c->sums) {
                    point *sum = c->sums + p * n + at;
                    for (long j = 0; j < m; j++) sum[j] = plus(sum[j], times_conjugate(later[j], from[j]));
                }
                if (!c->out) continue;
                if (p == 0) for (long j = 0; j < m; j++) here[j] = times_conjugate(here[j], kernel[j]);
                else for (long j = 0; j < m; j++) here[j] = plus(here[j], times_conjugate(later[j], kernel[j]));
            }
        }
    }
}

/* Transform, make a step, and transform back, for m points of every frame: block by block. */
static void run(const course *c, long at, long m, const float *roots) {
    const int radix = radix_of(m);
    if (m <= BLOCK) {
        for (long f = 0; c->in && f < c->frames; f++) transform(c->in + f * c->n + at, m, roots, FORWARD);
        step(c, at, m);
        for (long f = 0; c->out && f < c->frames; f++) transform(c->out + f * c->n + at, m, roots, INVERSE);
        return;
    }
    for (long f = 0; c->in && f < c->frames; f++) pass(c->in + f * c->n + at, m, radix, roots, FORWARD);
    for (int k = 0; k < radix; k++) run(c, at + k * (m / radix), m / radix, roots_of(roots, m, radix, k));
    for (long f = 0; c->out && f < c->frames; f++) pass(c->out + f * c->n + at, m, radix, roots, INVERSE);
}

static inline long least(long a, long b) { return a < b ? a : b; }

static inline long most(long a, long b) { return a > b ? a : b; }

/* The real values of a frame, of which the first n are real parts and the next n imaginary ones: those of one half. A
   value of index j is at [2 (j - half n)]. */
static inline vector *half_of(point *z, int half) { return (vector *)z + half; }

/* The element of a token of a row, for a group of channels. */
static inline long element_of(signal x, long row, long token, long channel) {
    return row * x.row + token * x.token + channel;
}

static inline vector activated(vector x) { return x * sigmoid(x); }

/* z = the tokens of frame f with indices first..last - 1, or silu(tokens + bias), and zeros. */
static inline __attribute__((always_inline)) void read_frame(point *z, const sizes *s, signal x, long row, long f,
                                                             long first, long last, long channel, long width,
                                                             const vector *bias, int bfloat16) {
    const long token = f * s->hop - s->start; /* of index 0 */
    for (int half = 0; half < 2; half++) {
        const long begin = half * s->n, end = begin + s->n;
        const long from = least(end, most(begin, most(first, -token)));
        const long to = most(from, least(end, least(last, s->length - token)));
        vector *values = half_of(z, half) - 2 * begin;
        for (long j = begin; j < from; j++) values[2 * j] = every(0);
        for (long j = from; j < to; j++) {
            const long at = element_of(x, row, token + j, channel);
            will_get(x.data, at + AHEAD * x.token, bfloat16);
            const vector value = get(x.data, at, width, bfloat16);
            values[2 * j] = bias ? activated(value + *bias) : value;
        }
        for (long j = to; j < end; j++) values[2 * j] = every(0);
    }
}

/* y = the valid outputs of frame f, times silu(gate + bias) if there is a gate. */
static inline __attribute__((always_inline)) void write_frame(point *z, const sizes *s, signal y, signal gate, long row,
                                                              long f, long channel, long width, vector bias,
                                                              int gated, int bfloat16) {
    const long token = f * s->hop - s->start, last = least(s->start + s->hop, s->length - token);
    for (int half = 0; half < 2; half++) {
        const long begin = half * s->n;
        const vector *values = half_of(z, half) - 2 * begin;
        for (long j = most(begin, s->start); j < least(begin + s->n, last); j++) {
            const long at = element_of(y, row, token + j, channel);
            vector value = values[2 * j];
            will_put(y.data, at + AHEAD * y.token, bfloat16);
            if (gated) {
                const long at_gate = element_of(gate, row, token + j, channel);
                will_get(gate.data, at_gate + AHEAD * gate.token, bfloat16);
                value *= activated(get(gate.data, at_gate, width, bfloat16) + bias);
            }
            put(y.data, at, value, width, bfloat16);
        }
    }
}

/* From the outputs y in z, before their gate: the gradient of the gate, whose sum is added to *sum; and that of y in z,
   zero where no output is valid. */
static inline __attribute__((always_inline)) void gate_frame(point *z, const sizes *s, signal grad, signal gate,
                                                             signal gate_grad, long row, long f, long channel,
                                                             long width, vector bias, vector *sum, int bfloat16) {
    const long token = f * s->hop - s->start, last = least(s->start + s->hop, s->length - token);
    vector total = every(0);
    for (int half = 0; half < 2; half++) {
        const long begin = half * s->n, end = begin + s->n;
        const long from = least(end, most(begin, s->start)), to = most(from, least(end, last));
        vector *values = half_of(z, half) - 2 * begin;
        for (long j = begin; j < from; j++) values[2 * j] = every(0);
        for (long j = from; j < to; j++) {
            const long at_grad = element_of(grad, row, token + j, channel);
            const long at_gate = element_of(gate, row, token + j, channel);
            will_get(grad.data, at_grad + AHEAD * grad.token, bfloat16);
            will_get(gate.data, at_gate + AHEAD * gate.token, bfloat16);
            const vector y_grad = get(grad.data, at_grad, width, bfloat16);
            const vector x = get(gate.data, at_gate, width, bfloat16) + bias, share = sigmoid(x);
            const vector x_grad = y_grad * values[2 * j] * silu_slope(x, share);
            total += x_grad;
            const long to_gate = element_of(gate_grad, row, token + j, channel);
            will_put(gate_grad.data, to_gate + AHEAD * gate_grad.token, bfloat16);
            put(gate_grad.data, to_gate, x_grad, width, bfloat16);
            values[2 * j] = y_grad * x * share;
        }
        for (long j = to; j < end; j++) values[2 * j] = every(0);
    }
    *sum += total;
}

/* Add up frames of the gradient of x in order: `carried` holds what earlier ones have for the 2 n - hop tokens after
   them. With a bias, the gradient is that of silu(x + bias), and the sum of x's is added to *sum. f = frames: z is no
   frame; only write what is left. */
static inline __attribute__((always_inline)) void add_frame(point *z, vector *carried, const sizes *s, signal x_grad,
                                                            signal x, long row, long f, long channel, long width,
                                                            const vector *bias, vector *sum, int bfloat16) {
    const long token = f * s->hop - s->start, overlap = 2 * s->n - s->hop;
    const int whole = f < s->frames;
    vector total = every(0);
    for (int half = 0; half < 2; half++) {
        const long begin = half * s->n, end = least(begin + s->n, whole ? s->hop : overlap);
        const vector *values = half_of(z, half) - 2 * begin;
        for (long j = most(begin, -token); j < least(end, s->length - token); j++) {
            vector value = whole ? values[2 * j] : every(0);
            if (f > 0 && j < overlap) value += carried[j];
            if (bias) {
                const long at = element_of(x, row, token + j, channel);
                will_get(x.data, at + AHEAD * x.token, bfloat16);
                const vector argument = get(x.data, at, width, bfloat16) + *bias;
                value *= silu_slope(argument, sigmoid(argument));
                total += value;
            }
            const long at_grad = element_of(x_grad, row, token + j, channel);
            will_put(x_grad.data, at_grad + AHEAD * x_grad.token, bfloat16);
            put(x_grad.data, at_grad, value, width, bfloat16);
        }
    }
    if (bias) *sum += total;
    if (!whole || token + s->hop >= s->length) return;
    for (int half = 0; half < 2; half++) {
        const long begin = half * s->n;
        const vector *values = half_of(z, half) - 2 * begin;
        for (long j = most(begin, s->hop); j < begin + s->n; j++) carried[j - s->hop] = values[2 * j];
    }
}

/* The taps of lag 0 and later in the first half of part 0 and so on; those of negative lags at the end of the circle,
   with the opposite sign. taps: (taps, channels). */
static void read_kernel(point *z, const sizes *s, const float *taps, long channel) {
    const long width = s->channels - channel, lags = s->parts > 1 ? s->hop : s->taps;
    memset(z, 0, s->parts * s->n * sizeof(point));
    for (long q = 0; q < s->taps; q++) {
        const long lag = q % lags - s->origin, index = lag < 0 ? lag + 2 * s->n : lag, half = index >= s->n;
        const vector value = get(taps, q * s->channels + channel, width, 0) * (1.0f / s->n);
        half_of(z + q / lags * s->n, half)[2 * (index - half * s->n)] = lag < 0 ? -value : value;
    }
}

static void write_kernel(point *z, const sizes *s, float *taps, long channel) {
    const long width = s->channels - channel, lags = s->parts > 1 ? s->hop : s->taps;
    for (long q = 0; q < s->taps; q++) {
        const long lag = q % lags - s->origin, index = lag < 0 ? lag + 2 * s->n : lag, half = index >= s->n;
        const vector value = half_of(z + q / lags * s->n, half)[2 * (index - half * s->n)] * (1.0f / s->n);
        put(taps, q * s->channels + channel, lag < 0 ? -value : value, width, 0);
    }
}

/* Frames of a row that meet. */
static long resident(const sizes *s) { return s->parts > 1 ? s->frames : 1; }

/* Groups of channels of a task. */
static long span(const sizes *s) { return s->bfloat16 ? 2 : 1; }

/* Vectors of scratch memory that one thread needs. */
long convolution_scratch(const sizes *s) {
    return 4 * s->n * (span(s) * s->parts + resident(s)) + most(0, 2 * s->n - s->hop);
}

static void fill_roots(float *roots, long m, double turns) {
    if (m == 1) return;
    const int radix = radix_of(m);
    for (int q = 1; q < radix; q++) {
        const double angle = 2 * M_PI * turns * q / radix;
        roots[2 * q - 2] = cos(angle);
        roots[2 * q - 1] = sin(angle);
    }
    for (int k = 0; k < radix; k++) fill_roots((float *)roots_of(roots, m, radix, k), m / radix, (turns + k) / radix);
}

/* The n - 1 complex roots that transforms of 2 n real values take. */
void convolution_roots(float *roots, long n) { fill_roots(roots, n, 0.25); }

/* Spectra of the kernel and of its gradient, frames of two signals, and what `add_frame` carries, of a thread. */
typedef struct {
    point *kernel, *sums, *z, *h;
    vector *carried;
} memory;

/* That for group q of a task. */
static memory memory_of(const sizes *s, float *scratch, long q) {
    const long of_kernel = s->parts * s->n, of_signal = resident(s) * s->n;
    point *own = (point *)(scratch + omp_get_thread_num() * convolution_scratch(s) * LANES);
    point *sums = own + span(s) * of_kernel, *z = sums + span(s) * of_kernel, *h = z + of_signal;
    return (memory){own + q * of_kernel, sums + q * of_kernel, z, h, (vector *)(h + of_signal)};
}

typedef struct {
    signal value, gate, y, grad, value_grad, gate_grad; /* data NULL: there is none */
} signals;

/* A group of channels: the first, how many are left from it on, and the biases of its gate and value. */
typedef struct {
    long channel, rest;
    vector biases[2];
} group;

static group group_of(const sizes *s, const float *biases, long g) {
    const long groups = (s->channels + LANES - 1) / LANES;
    const vector *all = (const vector *)biases;
    return (group){g * LANES, s->channels - g * LANES, {all[g], all[groups + g]}};
}

static inline __attribute__((always_inline)) void convolve_row(const sizes *s, const signals *x, const memory *m,
                                                               const float *roots, long row, const group *g,
                                                               long width, int bfloat16) {
    const int gated = x->gate.data != NULL;
    const long together = resident(s);
    const course product = {s->n, together, s->parts, PRODUCT, m->z, m->z, m->z, m->kernel, NULL};
    for (long first = 0; first < s->frames; first += together) {
        for (long f = 0; f < together; f++)
            read_frame(m->z + f * s->n, s, x->value, row, first + f, 0, 2 * s->n, g->channel, width,
                       gated ? &g->biases[1] : NULL, bfloat16);
        run(&product, 0, s->n, roots);
        for (long f = 0; f < together; f++)
            write_frame(m->z + f * s->n, s, x->y, x->gate, row, first + f, g->channel, width, g->biases[0], gated,
                        bfloat16);
    }
}

/* bias_sums: of gate and value. */
static inline __attribute__((always_inline)) void gradient_row(const sizes *s, const signals *x, const memory *m,
                                                               const float *roots, long row, const group *g,
                                                               vector *bias_sums, int summed, long width,
                                                               int bfloat16) {
    const int gated = x->gate.data != NULL, back = x->value_grad.data != NULL;
    const long together = resident(s), channel = g->channel;
    const course spectra = {s->n, together, 0, NOTHING, m->z, NULL, NULL, NULL, NULL};
    const course product = {s->n, together, s->parts, PRODUCT, m->z, m->h, m->z, m->kernel, NULL};
    const course gradient = {s->n, together,  s->parts,        GRADIENT, m->h, back ? m->h : NULL,
                             m->z, m->kernel, summed ? m->sums : NULL};
    const vector *value_bias = gated ? &g->biases[1] : NULL;
    for (long first = 0; first < s->frames; first += together) {
        for (long f = 0; f < together && (gated || summed); f++)
            read_frame(m->z + f * s->n, s, x->value, row, first + f, 0, 2 * s->n, channel, width, value_bias, bfloat16);
        if (gated) run(&product, 0, s->n, roots);
        else if (summed) run(&spectra, 0, s->n, roots);
        for (long f = 0; f < together; f++) {
            point *h = m->h + f * s->n;
            if (gated)
                gate_frame(h, s, x->grad, x->gate, x->gate_grad, row, first + f, channel, width, g->biases[0],
                           &bias_sums[0], bfloat16);
            else
                read_frame(h, s, x->grad, row, first + f, s->start, s->start + s->hop, channel, width, NULL, bfloat16);
        }
        run(&gradient, 0, s->n, roots);
        for (long f = 0; f < together && back; f++)
            add_frame(m->h + f * s->n, m->carried, s, x->value_grad, x->value, row, first + f, channel, width,
                      value_bias, &bias_sums[1], bfloat16);
    }
    if (back)
        add_frame(m->h, m->carried, s, x->value_grad, x->value, row, s->frames, channel, width, value_bias,
                  &bias_sums[1], bfloat16);
}

static void transform_kernel(const sizes *s, const memory *m, const float *taps, const float *roots, long channel) {
    const course spectra = {s->n, s->parts, 0, NOTHING, m->kernel, NULL, NULL, NULL, NULL};
    read_kernel(m->kernel, s, taps, channel);
    run(&spectra, 0, s->n, roots);
}

/* y = kernel * value, or silu(gate) * (kernel * silu(value)) if there is a gate. taps: (taps, channels). biases: (2,
   channels filled up to whole vectors), of gate and value. roots: of `convolution_roots`. scratch:
   `convolution_scratch` vectors for each thread. */
void convolve(const sizes *s, const signals *x, const float *taps, const float *biases, const float *roots,
              float *scratch) {
    const long groups = (s->channels + LANES - 1) / LANES;
#pragma omp parallel for schedule(dynamic) num_threads(s->threads)
    for (long from = 0; from < groups; from += span(s)) {
        const long count = least(span(s), groups - from);
        for (long q = 0; q < count; q++) {
            const memory m = memory_of(s, scratch, q);
            transform_kernel(s, &m, taps, roots, (from + q) * LANES);
        }
        for (long work = 0; work < s->batch * count; work++) {
            const long row = work / count, q = work % count;
            const memory m = memory_of(s, scratch, q);
            const group g = group_of(s, biases, from + q);
            if (g.rest < LANES) convolve_row(s, x, &m, roots, row, &g, g.rest, s->bfloat16);
            else if (s->bfloat16) convolve_row(s, x, &m, roots, row, &g, LANES, 1);
            else convolve_row(s, x, &m, roots, row, &g, LANES, 0);
        }
    }
}

/* Gradients of `convolve`, from that of y: of value and gate, of the taps unless taps_grad is NULL, and of the biases if
   there is a gate. */
void convolve_gradients(const sizes *s, const signals *x, const float *taps, const float *biases, float *taps_grad,
                        float *bias_grads, const float *roots, float *scratch) {
    const long groups = (s->channels + LANES - 1) / LANES;
    const int summed = taps_grad != NULL;
#pragma omp parallel for schedule(dynamic) num_threads(s->threads)
    for (long from = 0; from < groups; from += span(s)) {
        const long count = least(span(s), groups - from);
        vector sums[2][2] = {0}; /* by group, those of gate and value */
        for (long q = 0; q < count; q++) {
            const memory m = memory_of(s, scratch, q);
            transform_kernel(s, &m, taps, roots, (from + q) * LANES);
            if (summed) memset(m.sums, 0, s->parts * s->n * sizeof(point));
        }
        for (long work = 0; work < s->batch * count; work++) {
            const long row = work / count, q = work % count;
            const memory m = memory_of(s, scratch, q);
            const group g = group_of(s, biases, from + q);
            if (g.rest < LANES) gradient_row(s, x, &m, roots, row, &g, sums[q], summed, g.rest, s->bfloat16);
            else if (s->bfloat16) gradient_row(s, x, &m, roots, row, &g, sums[q], summed, LANES, 1);
            else gradient_row(s, x, &m, roots, row, &g, sums[q], summed, LANES, 0);
        }
        for (long q = 0; q < count; q++) {
            const memory m = memory_of(s, scratch, q);
            const course back = {s->n, s->parts, 0, NOTHING, NULL, m.sums, NULL, NULL, NULL};
            if (summed) run(&back, 0, s->n, roots);
            if (summed) write_kernel(m.sums, s, taps_grad, (from + q) * LANES);
            for (int i = 0; i < 2 && bias_grads; i++)
                memcpy((vector *)bias_grads + i * groups + from + q, &sums[q][i], sizeof(vector));
        }
    }
}
