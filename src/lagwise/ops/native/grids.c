/* Gated products over grids:

   y = silu(gate) * m with m = rows(s) + columns(s) and s = silu(value), where gate and value are given without their
   biases, for SPAN groups of LANES channels of one grid at a time: they stay in the processor's caches between the
   steps, and memory is read and written in pieces of several lines. In a tile, tokens lie row by row; rows and their
   number are filled up to whole QUADs. What is computed for these extra tokens means nothing. */

#include <omp.h>

#include "vector.h"

enum { QUAD = 4, PAIR = 2, SPAN = 8 };

/* Tokens between loading channels into the caches and their use. The pieces of a span are too short for the processor
   to foresee the next. */
enum { AHEAD = 6 };

/* Every token of a grid and every group of channels of a span. */
#define EACH_TOKEN(i, j, q)                 \
    for (long i = 0; i < height; i++)       \
        for (long j = 0; j < width; j++)    \
            for (long q = 0; q < count; q++)

typedef struct {
    long height, width, row; /* row: of a tile */
} grid;

static long filled(long count) { return (count + QUAD - 1) / QUAD * QUAD; }

static long lags_of(long size) { return 2 * size - 1 + QUAD - 1; }

/* y = rows(x) + columns(x). Taps are for lags from 1 - size on, with QUAD - 1 more at the end. */
static void mix(const vector *x, const vector *rows, const vector *columns, vector *y, const grid g) {
    for (long i = 0; i < g.height; i += PAIR) {
        for (long j = 0; j < g.width; j += QUAD) {
            vector sums[PAIR][QUAD] = {0};
            for (long k = 0; k < g.width; k++) {
                const vector *t = rows + j - k + g.width - 1, *from = x + i * g.row + k;
                const vector upper = from[0], lower = from[g.row];
#pragma GCC unroll 4
                for (int c = 0; c < QUAD; c++) {
                    sums[0][c] += t[c] * upper;
                    sums[1][c] += t[c] * lower;
                }
            }
            for (long k = 0; k < g.height; k++) {
                const vector *t = columns + i - k + g.height - 1, *from = x + k * g.row + j;
                const vector upper = t[0], lower = t[1];
#pragma GCC unroll 4
                for (int c = 0; c < QUAD; c++) {
                    sums[0][c] += upper * from[c];
                    sums[1][c] += lower * from[c];
                }
            }
            memcpy(y + i * g.row + j, sums[0], sizeof sums[0]);
            memcpy(y + (i + 1) * g.row + j, sums[1], sizeof sums[1]);
        }
    }
}

/* products[a][b] += sum over n of y_{a, n} x_{b, n}, for a, b < size, with steps of the two indices in tokens. */
static void add_outer(const vector *y, const vector *x, vector *products, long size, long step, long count,
                      long count_step) {
    const long row = filled(size);
    for (long a = 0; a < size; a += PAIR) {
        for (long b = 0; b < size; b += QUAD) {
            vector sums[PAIR][QUAD];
            memcpy(sums[0], products + a * row + b, sizeof sums[0]);
            memcpy(sums[1], products + (a + 1) * row + b, sizeof sums[1]);
            for (long n = 0; n < count; n++) {
                const vector *from_y = y + a * step + n * count_step, *from_x = x + b * step + n * count_step;
                const vector upper = from_y[0], lower = from_y[step];
#pragma GCC unroll 4
                for (int c = 0; c < QUAD; c++) {
                    sums[0][c] += upper * from_x[c * step];
                    sums[1][c] += lower * from_x[c * step];
                }
            }
            memcpy(products + a * row + b, sums[0], sizeof sums[0]);
            memcpy(products + (a + 1) * row + b, sums[1], sizeof sums[1]);
        }
    }
}

/* Sums of products[a][b] over equal lags a - b, from 1 - size to size - 1. */
static void add_diagonals(const vector *products, vector *lags, long size) {
    for (long l = 0; l < 2 * size - 1; l++) lags[l] = every(0);
    for (long a = 0; a < size; a++)
        for (long b = 0; b < size; b++) lags[a - b + size - 1] += products[a * filled(size) + b];
}

/* `mix` for every group of a span, with the taps of all groups. */
static void mix_span(const vector *x, const float *rows, const float *columns, vector *y, const grid g, long from,
                     long count) {
    const long tile = filled(g.height) * g.row, row_lags = lags_of(g.width), column_lags = lags_of(g.height);
    for (long q = 0; q < count; q++)
        mix(x + q * tile, (const vector *)rows + (from + q) * row_lags,
            (const vector *)columns + (from + q) * column_lags, y + q * tile, g);
}

/* Groups of channels in a span, and zeros that follow the taps. */
void grid_layout(long *span, long *extra_lags) {
    *span = SPAN;
    *extra_lags = QUAD - 1;
}

/* Vectors of scratch memory that one thread needs. */
long grid_scratch(long height, long width) {
    const long h = filled(height), w = filled(width);
    return SPAN * (4 * h * w + h * h + w * w);
}

/* gate, value, out: (batch, height * width, channels) without gaps. rows, columns: (groups of channels, lags, LANES)
   as `mix` needs them. biases: (2, groups of channels, LANES), of gate and value. scratch: `grid_scratch` vectors for
   each thread. */
void gated_grid(const void *gate, const void *value, const float *rows, const float *columns, const float *biases,
                void *out, float *scratch, long batch, long height, long width, long channels, long bfloat16,
                long threads) {
    const grid g = {height, width, filled(width)};
    const long groups = (channels + LANES - 1) / LANES, spans = (groups + SPAN - 1) / SPAN;
    const vector *gate_bias = (const vector *)biases, *value_bias = gate_bias + groups;
    const long tile = filled(height) * g.row;
#pragma omp parallel num_threads(threads)
    {
        vector *s = (vector *)scratch + omp_get_thread_num() * grid_scratch(height, width), *m = s + SPAN * tile;
#pragma omp for schedule(dynamic)
        for (long work = 0; work < batch * spans; work++) {
            const long from = work % spans * SPAN, count = groups - from < SPAN ? groups - from : SPAN;
            const long first = work / spans * height * width * channels;
            EACH_TOKEN(i, j, q) {
                const long c = (from + q) * LANES;
                const long at = first + (i * width + j) * channels + c;
                will_get(value, at + AHEAD * channels, bfloat16);
                const vector x = get(value, at, channels - c, bfloat16) + value_bias[from + q];
                s[q * tile + i * g.row + j] = x * sigmoid(x);
            }
            mix_span(s, rows, columns, m, g, from, count);
            EACH_TOKEN(i, j, q) {
                const long c = (from + q) * LANES, at = first + (i * width + j) * channels + c;
                will_get(gate, at + AHEAD * channels, bfloat16);
                will_put(out, at + AHEAD * channels, bfloat16);
                const vector x = get(gate, at, channels - c, bfloat16) + gate_bias[from + q];
                put(out, at, x * sigmoid(x) * m[q * tile + i * g.row + j], channels - c, bfloat16);
            }
        }
    }
}

/* Gradients of `gated_grid`: of gate and value like them, and of rows and columns as (groups, lags, LANES) and of the
   biases as (2, groups, LANES), in `parts` partial results to be added up. Reversed taps are given too, in the layout
   of the others. */
void gated_grid_gradients(const void *gate, const void *value, const float *rows, const float *columns,
                          const float *reversed_rows, const float *reversed_columns, const float *biases,
                          const void *grad, void *gate_grad, void *value_grad, float *row_sums, float *column_sums,
                          float *bias_sums, float *scratch, long batch, long height, long width, long channels,
                          long parts, long bfloat16, long threads) {
    const grid g = {height, width, filled(width)};
    const long groups = (channels + LANES - 1) / LANES, spans = (groups + SPAN - 1) / SPAN;
    const vector *gate_bias = (const vector *)biases, *value_bias = gate_bias + groups;
    const long tile = filled(height) * g.row, row_pairs = filled(width) * filled(width);
    const long column_pairs = filled(height) * filled(height);
#pragma omp parallel num_threads(threads)
    {
        vector *s = (vector *)scratch + omp_get_thread_num() * grid_scratch(height, width);
        vector *slope = s + SPAN * tile, *m = slope + SPAN * tile, *back = m + SPAN * tile;
        vector *in_rows = back + SPAN * tile, *in_columns = in_rows + SPAN * row_pairs;
#pragma omp for schedule(dynamic)
        for (long work = 0; work < parts * spans; work++) {
            const long from = work % spans * SPAN, count = groups - from < SPAN ? groups - from : SPAN;
            const long part = work / spans;
            vector *gate_sums = (vector *)bias_sums + 2 * part * groups + from, *value_sums = gate_sums + groups;
            for (long q = 0; q < count; q++) gate_sums[q] = value_sums[q] = every(0);
            memset(in_rows, 0, count * row_pairs * sizeof(vector));
            memset(in_columns, 0, count * column_pairs * sizeof(vector));
            for (long b = batch * part / parts; b < batch * (part + 1) / parts; b++) {
                const long first = b * height * width * channels;
                EACH_TOKEN(i, j, q) {
                    const long c = (from + q) * LANES, here = q * tile + i * g.row + j;
                    const long at = first + (i * width + j) * channels + c;
                    will_get(value, at + AHEAD * channels, bfloat16);
                    const vector x = get(value, at, channels - c, bfloat16) + value_bias[from + q];
                    const vector share = sigmoid(x);
                    s[here] = x * share;
                    slope[here] = silu_slope(x, share);
                }
                mix_span(s, rows, columns, m, g, from, count);
                EACH_TOKEN(i, j, q) {
                    const long c = (from + q) * LANES, at = first + (i * width + j) * channels + c;
                    will_get(gate, at + AHEAD * channels, bfloat16);
                    will_get(grad, at + AHEAD * channels, bfloat16);
                    will_put(gate_grad, at + AHEAD * channels, bfloat16);
                    const vector x = get(gate, at, channels - c, bfloat16) + gate_bias[from + q];
                    const vector y_grad = get(grad, at, channels - c, bfloat16), share = sigmoid(x);
                    vector *here = m + q * tile + i * g.row + j;
                    const vector x_grad = y_grad * *here * silu_slope(x, share);
                    gate_sums[q] += x_grad;
                    put(gate_grad, at, x_grad, channels - c, bfloat16);
                    *here = y_grad * x * share; /* the gradient of m from here on */
                }
                mix_span(m, reversed_rows, reversed_columns, back, g, from, count);
                for (long q = 0; q < count; q++) {
                    add_outer(m + q * tile, s + q * tile, in_rows + q * row_pairs, width, 1, height, g.row);
                    add_outer(m + q * tile, s + q * tile, in_columns + q * column_pairs, height, g.row, width, 1);
                }
                EACH_TOKEN(i, j, q) {
                    const long c = (from + q) * LANES, here = q * tile + i * g.row + j;
                    const long at = first + (i * width + j) * channels + c;
                    will_put(value_grad, at + AHEAD * channels, bfloat16);
                    const vector x_grad = back[here] * slope[here];
                    value_sums[q] += x_grad;
                    put(value_grad, at, x_grad, channels - c, bfloat16);
                }
            }
            for (long q = 0; q < count; q++) {
                const long group = part * groups + from + q;
                add_diagonals(in_rows + q * row_pairs, (vector *)row_sums + group * (2 * width - 1), width);
                add_diagonals(in_columns + q * column_pairs, (vector *)column_sums + group * (2 * height - 1), height);
            }
        }
    }
}
