/* Compares step() with the model for a test vector; with the argument -, reads the inputs of steps from standard input
 * and writes their outputs to standard output, as raw numbers.
 *
 * cc -std=c99 -Os step.c main.c -lm -o check && ./check
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "step.h"

#define STEPS $steps
#define LARGEST_DIFFERENCE $limit

static const $kind given[STEPS * STEP_INPUTS] = {
$given
};
static const float expected[STEPS * STEP_OUTPUTS] = {
$expected
};
static step_state state;

static int stream(void) {
    $kind inputs[STEP_INPUTS];
    float outputs[STEP_OUTPUTS];
    while (fread(inputs, sizeof inputs, 1, stdin) == 1) {
        step(&state, inputs, outputs);
        if (fwrite(outputs, sizeof outputs, 1, stdout) != 1) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    float outputs[STEP_OUTPUTS];
    double largest = 0;
    int wrong = 0;
    if (argc == 2 && strcmp(argv[1], "-") == 0) {
        return stream();
    }
    for (int i = 0; i < STEPS; i++) {
        step(&state, given + i * STEP_INPUTS, outputs);
        for (int j = 0; j < STEP_OUTPUTS; j++) {
            double difference = fabs((double)outputs[j] - expected[i * STEP_OUTPUTS + j]);
            wrong += !(difference <= LARGEST_DIFFERENCE);
            largest = fmax(largest, difference);
        }
    }
    printf("%d steps, %d outputs: %d wrong, largest difference %.1e\n", STEPS, STEPS * STEP_OUTPUTS, wrong, largest);
    return wrong != 0;
}
