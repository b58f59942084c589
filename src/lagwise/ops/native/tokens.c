/* Steps that PyTorch makes in several passes over memory. */

#include <math.h>

#include "vector.h"

/* out = silu(gate + gate_bias) * (value + value_bias), for `count` numbers in rows of `size`. biases: for a row of each,
   filled up to whole vectors. */
void silu_product(const void *gate, const void *value, const float *biases, void *out, long count, long size,
                  int bfloat16, int threads) {
    const vector *gate_bias = (const vector *)biases, *value_bias = gate_bias + (size + LANES - 1) / LANES;
#pragma omp parallel for num_threads(threads)
    for (long first = 0; first < count; first += size) {
        const long end = first + size < count ? first + size : count;
        for (long at = first, v = 0; at < end; at += LANES, v++) {
            const vector x = get(gate, at, end - at, bfloat16) + gate_bias[v];
            const vector y = get(value, at, end - at, bfloat16) + value_bias[v];
            put(out, at, x * sigmoid(x) * y, end - at, bfloat16);
        }
    }
}

void silu_product_gradients(const void *grad, const void *gate, const void *value, const float *biases,
                            void *gate_grad, void *value_grad, long count, long size, int bfloat16, int threads) {
    const vector *gate_bias = (const vector *)biases, *value_bias = gate_bias + (size + LANES - 1) / LANES;
#pragma omp parallel for num_threads(threads)
    for (long first = 0; first < count; first += size) {
        const long end = first + size < count ? first + size : count;
        for (long at = first, v = 0; at < end; at += LANES, v++) {
            const vector x = get(gate, at, end - at, bfloat16) + gate_bias[v], share = sigmoid(x);
            const vector y_grad = get(grad, at, end - at, bfloat16);
            const vector y = get(value, at, end - at, bfloat16) + value_bias[v];
            put(value_grad, at, y_grad * x * share, end - at, bfloat16);
            put(gate_grad, at, y_grad * y * silu_slope(x, share), end - at, bfloat16);
        }
    }
}

/* y = x / root of every row, with root = sqrt(mean(x^2) + epsilon), and 1 / root. */
void rms_norm(const float *x, float *y, float *inverse, long rows, long channels, float epsilon, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long row = 0; row < rows; row++) {
        const float *from = x + row * channels;
        float *to = y + row * channels, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long c = 0; c < channels; c++) sum += from[c] * from[c];
        const float scale = 1.0f / sqrtf(sum / channels + epsilon);
        for (long c = 0; c < channels; c++) to[c] = from[c] * scale;
        inverse[row] = scale;
    }
}

/* The gradient of x: (grad - y mean(grad y)) / root. */
void rms_norm_gradient(const float *grad, const float *x, const float *inverse, float *x_grad, long rows,
                       long channels, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long row = 0; row < rows; row++) {
        const float *g = grad + row * channels, *from = x + row * channels, scale = inverse[row];
        float *to = x_grad + row * channels, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long c = 0; c < channels; c++) sum += g[c] * from[c];
        const float share = sum / channels * scale * scale;
        for (long c = 0; c < channels; c++) to[c] = (g[c] - from[c] * share) * scale;
    }
}
