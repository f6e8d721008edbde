"""Equal but for rounding: a billionth, for sums that are taken in another order."""

from functools import partial

import pytest

near = partial(pytest.approx, rel=1e-9)
