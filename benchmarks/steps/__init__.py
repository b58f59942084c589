"""Models and counters of training steps, for the benchmarks of GPUs."""
