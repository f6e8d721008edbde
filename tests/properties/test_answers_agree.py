"""What `fleet` calls met is met in simulation, copies carry copies of the load, a device alone is that device among others: a sample.

`make fuzz` asks new scenarios: see tests/fuzz/answers.py.
"""

import pytest

from tests.fuzz.answers import KINDS, asked_question, laws
from tests.sweeps import long_but

SAMPLE = {
    "open": 900_301,
    "users": 3,
    "classes": 820_005,
    "mixed": 900_304,
    "sessions": 3,
    "session-users": 1,
    "drafts": 1,
    "pools": 700,
    "pool-users": 810_003,
    "session-mixed": 1,
    "user-drafts": 1,
    "mixed-drafts": 900_000,
    "pool-drafts": 1,
}
"""Kind -> number of a scenario.

In the one of pools, a listed plan with pools is surer for less than any without; users of pools send more to quicker devices
beside it. In the one of classes, users without think time wait for most of their time. The open one comes in
bursts, which more replicas even out; in the mixed one a few long requests come beside many short ones of users.
"""


@pytest.mark.parametrize("kind", long_but(("open", "users", "classes"), SAMPLE))
def test_the_laws_of_an_answer_hold(kind):
    text, random = asked_question(kind, SAMPLE[kind])
    assert laws(text, random) == [], text


def test_every_kind_of_scenario_is_asked():
    assert set(SAMPLE) == set(KINDS)
