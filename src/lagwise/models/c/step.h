/* $title
 *
$notes
 */
#ifndef STEP_H
#define STEP_H

#include <stdint.h>

#define STEP_INPUTS $inputs /* of a step: $inputs_are, row by row */
#define STEP_OUTPUTS $outputs /* of a step: $outputs_are, row by row */

struct step_tensors {
$tensors
};

/* The state of a stream: that after the last step, and memory for the next one. Zeros, as in static memory, are the
 * state before the first step. */
typedef struct {
    struct step_tensors tensors[2];
    int now;
} step_state;

/* Begin a new stream. */
void step_start(step_state *state);

/* Compute the outputs of the next step of a stream. */
void step(step_state *state, const $kind *inputs, float *outputs);

#endif
