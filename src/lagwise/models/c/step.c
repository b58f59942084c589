#include "step.h"

#include <string.h>

void step_start(step_state *state) {
    memset(state, 0, sizeof *state);
}

void step(step_state *state, const $kind *inputs, float *outputs) {
    const struct step_tensors *past = &state->tensors[state->now];
    struct step_tensors *present = &state->tensors[!state->now];
    step_graph($arguments);
    state->now = !state->now;
}
