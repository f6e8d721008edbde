"""The same question gives the same bytes under any hash seed, locale and time zone, and with one worker or several.

Other interpreters and libraries: `python -m tests.installs.same_bytes`.
"""

import json
import locale
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.installs.answers import FORMATS, QUESTIONS
from tests.sweeps import long_but

LOCALES = ("C", "POSIX", "C.UTF-8", "de_DE", "tr_TR", "de_DE.UTF-8", "tr_TR.UTF-8")


def has(name):
    """Return whether a locale is installed."""
    before = locale.setlocale(locale.LC_ALL)
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, name)
        locale.setlocale(locale.LC_ALL, before)
        return True
    return False


def answered(root, *words, **env):
    done = subprocess.run(
        [sys.executable, "-m", "tests.installs.answers", *words],
        cwd=root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected(root):
    return answered(root, PYTHONHASHSEED="0", LC_ALL="C.UTF-8", TZ="UTC")


@pytest.mark.long
def test_every_question_is_answered(expected):
    assert len(expected) == len(QUESTIONS) * len(FORMATS)
    assert {answer.split()[0] for answer in expected.values()} <= {"0", "3", "4"}


@pytest.mark.long
@pytest.mark.parametrize("name", long_but({"C"}, filter(has, LOCALES)))
def test_a_locale_changes_no_byte(name, expected, root):
    """Each with a hash seed and a time zone of its own."""
    number = LOCALES.index(name)
    zone = ("Asia/Kathmandu", "America/St_Johns", "Europe/Berlin")[number % 3]
    assert answered(root, LC_ALL=name, PYTHONHASHSEED=str(number + 1), TZ=zone) == expected


@pytest.mark.long
def test_workers_change_no_byte(expected, root):
    assert answered(root, "2", PYTHONHASHSEED="random") == expected
