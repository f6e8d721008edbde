"""One prefill, one decode step, one mixed step, one speculative round: sums of operators."""
