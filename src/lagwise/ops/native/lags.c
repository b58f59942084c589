/* Sums of products of two signals at every lag. */

#include "vector.h"

/* How many sums stay in registers: a vector of channels for each of LAGS lags. */
enum { LAGS = BYTES == 64 ? 16 : 8, TILE = 128 };

/* How partial results lie, see lag_products: channels in groups of LANES, lags in groups of LAGS. */
void layout(long *lanes, long *lags) {
    *lanes = LANES;
    *lags = LAGS;
}

/* sums[k] += sum_i y[i] x[i + k] for LAGS values of k. */
static void add_products(const vector *y, const vector *x, vector *sums, long tokens) {
    vector s[LAGS];
    for (int k = 0; k < LAGS; k++) s[k] = sums[k];
    for (long i = 0; i < tokens; i++) {
        const vector here = y[i];
#pragma GCC unroll 16
        for (int k = 0; k < LAGS; k++) s[k] += here * x[i + k];
    }
    for (int k = 0; k < LAGS; k++) sums[k] = s[k];
}

/* Copy `count` tokens from the first on, LANES channels of them or the last `width`; zeros outside 0 .. length - 1. */
static void load(vector *to, const float *from, long stride, long first, long count, long length, long width) {
    for (long i = 0; i < count; i++) {
        const long at = first + i;
        will_get(from, at * stride + LANES, 0); /* the next channels of the tile */
        if (at < 0 || at >= length) memset(&to[i], 0, sizeof to[i]);
        else if (width == LANES) memcpy(&to[i], from + at * stride, sizeof to[i]);
        else memcpy(&to[i], from + at * stride, width * sizeof(float));
    }
}

/* Sums over i of y_i x_{i - l}, in every channel, for lags l = last, last - 1, ..., first.

   y, x: (batch, length, channels), channels side by side, with strides of the batch and of tokens, in floats.
   dilation: lags count in steps of it, and every dilation-th token makes a row of its own.
   out: `parts` partial results to be added up, each (groups of channels, lags, LANES) with both filled up to whole
   groups; what is beyond the channels or the lags means nothing. */
void lag_products(const float *y, long y_row, long y_token, const float *x, long x_row, long x_token, float *out,
                  long batch, long length, long channels, long dilation, long first, long last, long parts,
                  long threads) {
    const long groups = (channels + LANES - 1) / LANES, lags = last - first + 1;
    const long padded = (lags + LAGS - 1) / LAGS * LAGS;
    const long tiles = ((length + dilation - 1) / dilation + TILE - 1) / TILE, work = batch * dilation * tiles;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long part = 0; part < parts; part++) {
        vector *sums = (vector *)out + part * groups * padded, ys[TILE], xs[TILE + padded];
        memset(sums, 0, groups * padded * sizeof(vector));
        memset(ys, 0, sizeof ys);
        memset(xs, 0, sizeof xs);
        for (long w = work * part / parts; w < work * (part + 1) / parts; w++) {
            const long start = w % tiles * TILE, phase = w / tiles % dilation, b = w / tiles / dilation;
            const long row = (length - phase + dilation - 1) / dilation; /* tokens of this phase */
            const long tokens = row - start < TILE ? row - start : TILE;
            const float *from_y = y + b * y_row + phase * y_token, *from_x = x + b * x_row + phase * x_token;
            /* All channels of a tile before the next tile: memory is read along its rows. */
            for (long c = 0; c < channels && tokens > 0; c += LANES) {
                const long width = channels - c < LANES ? channels - c : LANES;
                load(ys, from_y + c, y_token * dilation, start, tokens, row, width);
                load(xs, from_x + c, x_token * dilation, start - last, tokens + lags - 1, row, width);
                for (long k = 0; k < padded; k += LAGS) add_products(ys, xs + k, sums + c / LANES * padded + k, tokens);
            }
        }
    }
}
