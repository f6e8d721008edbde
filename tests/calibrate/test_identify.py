"""Which catalogue entry a card is: names as drivers print them, with their multiprocessors and memory."""

import pytest

from capplan.readers.calibration.file import same_device
from capplan.readers.calibration.record import Machine
from capplan.readers.catalogue.hardware import device, device_names

GIB = 1024**3


def entries(name, multiprocessors, gib):
    machine = Machine("cuda:0", name, "0" * 12, None, None, "2", None, gib * GIB, multiprocessors, 1e7)
    return {entry for entry in device_names() if same_device(machine, device(entry))}


@pytest.mark.parametrize(
    ("name", "multiprocessors", "gib", "wanted"),
    [
        ("NVIDIA H200", 132, 139.8, "h200-sxm"),
        ("NVIDIA H200 NVL", 132, 139.8, "h200-nvl"),
        ("NVIDIA H100 80GB HBM3", 132, 79.2, "h100-sxm"),
        ("NVIDIA H100 PCIe", 114, 79.2, "h100-pcie"),
        ("NVIDIA H100 NVL", 132, 93.1, "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", 108, 79.3, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 108, 39.4, "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", 108, 79.3, "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", 108, 39.4, "a100-pcie-40gb"),
        ("NVIDIA B200", 148, 178.4, "b200"),
        ("NVIDIA GB200", 148, 184.0, "gb200"),
        ("NVIDIA L40S", 142, 44.4, "l40s"),
        ("NVIDIA L4", 58, 22.0, "l4"),
        ("NVIDIA A10G", 80, 22.1, "a10g"),
        ("Tesla T4", 40, 14.6, "t4"),
        ("Tesla V100-SXM2-32GB", 80, 31.7, "v100-sxm-32gb"),
        ("NVIDIA GeForce RTX 4090", 128, 23.6, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", 114, 23.5, "rtx-4090d"),
        ("NVIDIA GeForce RTX 3090", 82, 23.6, "rtx-3090"),
        ("NVIDIA RTX 6000 Ada Generation", 142, 47.5, "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 95.0, "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 95.0, "rtx-pro-6000-workstation"),
        ("AMD Instinct MI300X", 304, 191.7, "mi300x"),
    ],
)
def test_a_driver_s_name_finds_its_catalogue_entry_and_no_other(name, multiprocessors, gib, wanted):
    assert entries(name, multiprocessors, gib) == {wanted}


@pytest.mark.parametrize(
    ("name", "multiprocessors", "gib"),
    [
        ("NVIDIA GeForce RTX 3090 Ti", 84, 23.6),
        ("NVIDIA GeForce RTX 5090 D", 170, 31.4),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 15.6),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188, 95.0),
        ("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 98, 79.3),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 132, 79.2),
        ("NVIDIA H100 80GB HBM3", 132, 39.5),
        ("NVIDIA H100 PCIe", 132, 79.2),
    ],
)
def test_a_card_like_one_of_the_catalogue_is_not_that_one(name, multiprocessors, gib):
    assert entries(name, multiprocessors, gib) == set()
