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

/* Gradients of gate and value from that of `silu_product`, and of their biases in `parts` sums, each like the biases, to
   be added up. */
void silu_product_gradients(const void *grad, const void *gate, const void *value, const float *biases,
                            void *gate_grad, void *value_grad, float *bias_sums, long count, long size, long parts,
                            int bfloat16, int threads) {
    const long vectors = (size + LANES - 1) / LANES, rows = (count + size - 1) / size;
    const vector *gate_bias = (const vector *)biases, *value_bias = gate_bias + vectors;
#pragma omp parallel for num_threads(threads)
    for (long part = 0; part < parts; part++) {
        vector *gate_sum = (vector *)bias_sums + 2 * part * vectors, *value_sum = gate_sum + vectors;
        memset(gate_sum, 0, 2 * vectors * sizeof(vector));
        for (long row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
            const long first = row * size, end = first + size < count ? first + size : count;
            for (long at = first, v = 0; at < end; at += LANES, v++) {
                const vector x = get(gate, at, end - at, bfloat16) + gate_bias[v], share = sigmoid(x);
                const vector y_grad = get(grad, at, end - at, bfloat16);
                const vector y = get(value, at, end - at, bfloat16) + value_bias[v];
                const vector of_value = y_grad * x * share, of_gate = y_grad * y * silu_slope(x, share);
                put(value_grad, at, of_value, end - at, bfloat16);
                put(gate_grad, at, of_gate, end - at, bfloat16);
                gate_sum[v] += of_gate;
                value_sum[v] += of_value;
            }
        }
    }
}

static inline float sum_of(vector x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* x in the first `width` lanes, and zeros. */
static inline vector inside(vector x, long width) {
    for (int i = 0; i < LANES; i++) x[i] = i < width ? x[i] : 0;
    return x;
}

/* The mean of a row, 0 unless centred, and 1 / sqrt(mean((x - mean)^2) + epsilon). */
typedef struct {
    float mean, scale;
} spread;

static spread spread_of(const void *x, long first, long channels, float epsilon, int centred, int bfloat16) {
    vector sum = every(0), squares = every(0);
    for (long c = 0; centred && c < channels; c += LANES) sum += get(x, first + c, channels - c, bfloat16);
    const float mean = sum_of(sum) / channels;
    for (long c = 0; c < channels; c += LANES) {
        const vector centre = get(x, first + c, channels - c, bfloat16) - mean;
        const vector kept = c + LANES > channels ? inside(centre, channels - c) : centre;
        squares += kept * kept;
    }
    return (spread){mean, 1.0f / sqrtf(sum_of(squares) / channels + epsilon)};
}

/* Sizes of rows, and which tensors are bfloat16 rather than float32. */
typedef struct {
    long rows, channels, parts, centred, x16, branch16, total16, y16, threads;
} norm_sizes;

/* total = x + branch, and y = (total - mean) * scale * weight + bias of every row. Without a branch, total is x. Branch,
   weight and bias may be NULL. */
void residual_norm(const norm_sizes *s, const void *x, const void *branch, const float *weight, const float *bias,
                   void *total, void *y, float epsilon) {
    const long channels = s->channels;
#pragma omp parallel for num_threads(s->threads)
    for (long row = 0; row < s->rows; row++) {
        const long first = row * channels;
        for (long c = 0; branch && c < channels; c += LANES) {
            const long at = first + c, width = channels - c;
            put(total, at, get(x, at, width, s->x16) + get(branch, at, width, s->branch16), width, s->total16);
        }
        const spread own = spread_of(total, first, channels, epsilon, s->centred, s->total16);
        for (long c = 0; c < channels; c += LANES) {
            const long at = first + c, width = channels - c;
            vector value = (get(total, at, width, s->total16) - own.mean) * own.scale;
            if (weight) value *= get(weight, c, width, 0);
            if (bias) value += get(bias, c, width, 0);
            put(y, at, value, width, s->y16);
        }
    }
}

/* Gradients from those of y and, unless NULL, of the total: of x, in the dtype of the total's; the same of the branch in
   its own dtype, unless NULL; and of weight and bias, unless NULL, in `parts` sums at this distance, to be added up. */
void residual_norm_gradients(const norm_sizes *s, const void *grad, const void *total_grad, const void *total,
                             const float *weight, void *x_grad, void *branch_grad, float *weight_sums,
                             float *bias_sums, long distance, float epsilon) {
    const long channels = s->channels;
#pragma omp parallel for num_threads(s->threads)
    for (long part = 0; part < s->parts; part++) {
        float *of_weight = weight_sums + part * distance, *of_bias = bias_sums + part * distance;
        for (long c = 0; c < channels; c++) {
            if (weight_sums) of_weight[c] = 0;
            if (bias_sums) of_bias[c] = 0;
        }
        for (long row = s->rows * part / s->parts; row < s->rows * (part + 1) / s->parts; row++) {
            const long first = row * channels;
            const spread own = spread_of(total, first, channels, epsilon, s->centred, s->total16);
            vector products = every(0), sum = every(0);
            for (long c = 0; c < channels; c += LANES) {
                const long width = channels - c;
                const vector value = (get(total, first + c, width, s->total16) - own.mean) * own.scale;
                vector y_grad = get(grad, first + c, width, s->y16);
                if (weight_sums) put(of_weight, c, get(of_weight, c, width, 0) + y_grad * value, width, 0);
                if (bias_sums) put(of_bias, c, get(of_bias, c, width, 0) + y_grad, width, 0);
                if (weight) y_grad *= get(weight, c, width, 0);
                products += y_grad * value;
                sum += y_grad;
            }
            const float share = sum_of(products) / channels, mean = s->centred ? sum_of(sum) / channels : 0;
            for (long c = 0; c < channels; c += LANES) {
                const long at = first + c, width = channels - c;
                const vector value = (get(total, at, width, s->total16) - own.mean) * own.scale;
                vector y_grad = get(grad, at, width, s->y16);
                if (weight) y_grad *= get(weight, c, width, 0);
                vector result = (y_grad - value * share - mean) * own.scale;
                if (total_grad) result += get(total_grad, at, width, s->total16);
                put(x_grad, at, result, width, s->x16);
                if (branch_grad) put(branch_grad, at, result, width, s->branch16);
            }
        }
    }
}
