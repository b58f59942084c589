/* Steps that PyTorch makes in several passes over memory. */

#include <math.h>

#include "vector.h"

/* out = silu(gate + gate_bias) * (value + value_bias), for `count` numbers in rows of `size`. biases: for a row of each,
   filled up to whole vectors. */
void silu_product(const void *gate, const void *value, const float *biases, void *out, long count, long size,
                  long bfloat16, long threads) {
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
                            long bfloat16, long threads) {
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
    for (int i = 0; i < LANES && width < LANES; i++) x[i] = i < width ? x[i] : 0;
    return x;
}

/* Sizes of rows; and which tensors are bfloat16 rather than float32. */
typedef struct {
    long rows, channels, parts, centred, x16, branch16, total16, y16, threads;
} norm_sizes;

/* The mean of a row, 0 unless centred, and 1 / sqrt(mean((x - mean)^2) + epsilon). */
typedef struct {
    float mean, scale;
} spread;

/* Channels from c on: a constant where rows consist of whole vectors. */
static inline __attribute__((always_inline)) long left(const norm_sizes *s, long c, int whole) {
    return whole ? LANES : s->channels - c;
}

static inline __attribute__((always_inline)) spread spread_of(const norm_sizes *s, const void *x, long first,
                                                              float epsilon, int whole, int bfloat16) {
    const long channels = s->channels;
    vector sum = every(0), squares = every(0);
    if (s->centred)
        for (long c = 0; c < channels; c += LANES) sum += get(x, first + c, left(s, c, whole), bfloat16);
    const float mean = sum_of(sum) / channels;
    for (long c = 0; c < channels; c += LANES) {
        const long width = left(s, c, whole);
        const vector centre = inside(get(x, first + c, width, bfloat16) - mean, width);
        squares += centre * centre;
    }
    return (spread){mean, 1.0f / sqrtf(sum_of(squares) / channels + epsilon)};
}

static inline __attribute__((always_inline)) void norm_row(const norm_sizes *s, const void *x, const void *branch,
                                                           const float *weight, const float *bias, void *total, void *y,
                                                           float epsilon, long first, int whole, int x16, int branch16,
                                                           int total16, int y16) {
    const long channels = s->channels;
    if (branch)
        for (long c = 0; c < channels; c += LANES) {
            const long at = first + c, width = left(s, c, whole);
            put(total, at, get(x, at, width, x16) + get(branch, at, width, branch16), width, total16);
        }
    const spread own = spread_of(s, total, first, epsilon, whole, total16);
    for (long c = 0; c < channels; c += LANES) {
        const long at = first + c, width = left(s, c, whole);
        vector value = (get(total, at, width, total16) - own.mean) * own.scale;
        if (weight) value *= get(weight, c, width, 0);
        if (bias) value += get(bias, c, width, 0);
        put(y, at, value, width, y16);
    }
}

/* total = x + branch, and y = (total - mean) * scale * weight + bias of every row. Without a branch, total is x. Branch,
   weight and bias may be NULL. */
void residual_norm(const norm_sizes *s, const void *x, const void *branch, const float *weight, const float *bias,
                   void *total, void *y, float epsilon) {
    const int single = !s->x16 && !s->total16 && s->channels % LANES == 0;
    const int half = single && s->y16 && (!branch || s->branch16), none = single && !s->y16 && !s->branch16;
#pragma omp parallel for num_threads(s->threads)
    for (long row = 0; row < s->rows; row++) {
        const long at = row * s->channels;
        if (half) norm_row(s, x, branch, weight, bias, total, y, epsilon, at, 1, 0, 1, 0, 1);
        else if (none) norm_row(s, x, branch, weight, bias, total, y, epsilon, at, 1, 0, 0, 0, 0);
        else norm_row(s, x, branch, weight, bias, total, y, epsilon, at, 0, s->x16, s->branch16, s->total16, s->y16);
    }
}

typedef struct {
    const void *grad, *total_grad, *total; /* of y, of the total, and the total itself */
    const float *weight;
    void *x_grad, *branch_grad;
    float *weight_sum, *bias_sum;
} norm_gradients;

static inline __attribute__((always_inline)) void norm_gradient_row(const norm_sizes *s, const norm_gradients *g,
                                                                    float epsilon, long first, int whole, int x16,
                                                                    int branch16, int total16, int y16) {
    const long channels = s->channels;
    const spread own = spread_of(s, g->total, first, epsilon, whole, total16);
    vector products = every(0), sum = every(0);
    for (long c = 0; c < channels; c += LANES) {
        const long width = left(s, c, whole);
        const vector value = (get(g->total, first + c, width, total16) - own.mean) * own.scale;
        vector y_grad = get(g->grad, first + c, width, y16);
        if (g->weight_sum) put(g->weight_sum, c, get(g->weight_sum, c, width, 0) + y_grad * value, width, 0);
        if (g->bias_sum) put(g->bias_sum, c, get(g->bias_sum, c, width, 0) + y_grad, width, 0);
        if (g->weight) y_grad *= get(g->weight, c, width, 0);
        products += y_grad * value;
        sum += y_grad;
    }
    const float share = sum_of(products) / channels, mean = s->centred ? sum_of(sum) / channels : 0;
    for (long c = 0; c < channels; c += LANES) {
        const long at = first + c, width = left(s, c, whole);
        const vector value = (get(g->total, at, width, total16) - own.mean) * own.scale;
        vector y_grad = get(g->grad, at, width, y16);
        if (g->weight) y_grad *= get(g->weight, c, width, 0);
        vector result = (y_grad - value * share - mean) * own.scale;
        if (g->total_grad) result += get(g->total_grad, at, width, total16);
        put(g->x_grad, at, result, width, x16);
        if (g->branch_grad) put(g->branch_grad, at, result, width, branch16);
    }
}

/* Gradients from those of y and, unless NULL, of the total: of x, in the dtype of the total's; the same of the branch in
   its own dtype, unless NULL; and of weight and bias, unless NULL, in `parts` sums at this distance, to be added up. */
void residual_norm_gradients(const norm_sizes *s, const void *grad, const void *total_grad, const void *total,
                             const float *weight, void *x_grad, void *branch_grad, float *weight_sums,
                             float *bias_sums, long distance, float epsilon) {
    const int single = !s->x16 && !s->total16 && s->channels % LANES == 0;
    const int half = single && s->y16 && (!branch_grad || s->branch16), none = single && !s->y16 && !s->branch16;
#pragma omp parallel for num_threads(s->threads)
    for (long part = 0; part < s->parts; part++) {
        norm_gradients g = {grad, total_grad, total, weight, x_grad, branch_grad, NULL, NULL};
        if (weight_sums) g.weight_sum = memset(weight_sums + part * distance, 0, s->channels * sizeof(float));
        if (bias_sums) g.bias_sum = memset(bias_sums + part * distance, 0, s->channels * sizeof(float));
        for (long row = s->rows * part / s->parts; row < s->rows * (part + 1) / s->parts; row++) {
            const long at = row * s->channels;
            if (half) norm_gradient_row(s, &g, epsilon, at, 1, 0, 1, 0, 1);
            else if (none) norm_gradient_row(s, &g, epsilon, at, 1, 0, 0, 0, 0);
            else norm_gradient_row(s, &g, epsilon, at, 0, s->x16, s->branch16, s->total16, s->y16);
        }
    }
}
