"""Files that scripts write into the package: what is shipped can be written again, character by character."""

import pytest

from calibrate.fit_kernels import CATALOGUE_NAMES, HEAD
from calibrate.fit_serving import host_times_text, intervals_text
from capplan.engine.lookup import HOST_TIMES_FILE, host_times
from capplan.readers.catalogue.efficiency import (
    INTERVALS_FILE,
    efficiency_folder,
    efficiency_text,
    intervals_in,
    read_efficiency,
)


def test_shipped_host_times_can_be_written_again():
    assert host_times_text(host_times()) == HOST_TIMES_FILE.read_text(encoding="utf-8")


def test_shipped_intervals_can_be_written_again():
    assert intervals_text(intervals_in(INTERVALS_FILE)) == INTERVALS_FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "names"), CATALOGUE_NAMES.values())
def test_shipped_efficiencies_can_be_written_again(file, names):
    path = efficiency_folder() / f"{file}.yaml"
    assert efficiency_text(read_efficiency(path)[0], names, HEAD) == path.read_text(encoding="utf-8")
