"""Steps that take the same time whatever is in them, so that a person can follow every event."""

import numpy as np

from capplan.serving.step_table import StepTable


def constant_steps(decode_s: float = 1.0, prompt_s: float = 1.0) -> StepTable:
    """Return the table of an engine whose steps without and with prompts take these times."""
    one, none = np.array([1.0]), np.array([[0.0]])
    return StepTable(one, decode_s * one, 0.0 * one, one, none, one, prompt_s * one, one, one, none)
