"""Which catalogue entry a card is: names as drivers print them, with their multiprocessors and memory."""

import pytest

from capplan.readers.calibration.file import same_device
from capplan.readers.calibration.record import Machine
from capplan.readers.catalogue.hardware import device, device_names
from tests.tables import rows

GIB = 1024**3


def entries(name, multiprocessors, gib):
    machine = Machine("cuda:0", name, "0" * 12, None, None, "2", None, gib * GIB, multiprocessors, 1e7)
    return {entry for entry in device_names() if same_device(machine, device(entry))}


@pytest.mark.parametrize(("name", "multiprocessors", "gib", "wanted"), rows("names")["drivers"])
def test_a_driver_s_name_finds_its_catalogue_entry_and_no_other(name, multiprocessors, gib, wanted):
    assert entries(name, multiprocessors, gib) == ({wanted} if wanted else set())
