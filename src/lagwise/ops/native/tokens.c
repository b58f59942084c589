/* Steps that PyTorch makes in several passes over memory. */

#include <math.h>

#include "vector.h"

/* out = silu(gate) * value, for `count` numbers. */
void silu_product(const void *gate, const void *value, void *out, long count, int bfloat16, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long at = 0; at < count; at += LANES) {
        const vector x = get(gate, at, count - at, bfloat16);
        put(out, at, x * sigmoid(x) * get(value, at, count - at, bfloat16), count - at, bfloat16);
    }
}

void silu_product_gradients(const void *grad, const void *gate, const void *value, void *gate_grad, void *value_grad,
                            long count, int bfloat16, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long at = 0; at < count; at += LANES) {
        const vector x = get(gate, at, count - at, bfloat16), y = get(grad, at, count - at, bfloat16);
        const vector share = sigmoid(x);
        put(value_grad, at, y * x * share, count - at, bfloat16);
        put(gate_grad, at, y * get(value, at, count - at, bfloat16) * silu_slope(x, share), count - at, bfloat16);
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
