"""The catalogue against figures that others published or printed."""

import csv
from pathlib import Path

import pytest

from capplan.engine.lookup import profile, scheduling, unsupported_reason
from capplan.errors import InputError
from capplan.readers.catalogue.hardware import (
    device,
    device_aliases,
    device_names,
    known_words,
    sku_of,
    words_of_name,
)
from capplan.readers.yaml_file import read_yaml
from tests.tables import rows, table

ROOT = Path(__file__).resolve().parents[2]
DEVICES = {name: device(name) for name in device_names()}
GIB = 2**30


ANNOUNCED = ("vera-rubin", "mi455x")
"""Devices of which the vendor alone has stated figures."""


@pytest.mark.parametrize("name", ANNOUNCED)
def test_figures_that_a_vendor_announced_are_labelled(name):
    labels = DEVICES[name].labels
    assert labels["memory_bytes"] == labels["memory_bytes_per_s"] == "announced"
    assert set(labels.values()) <= {"announced", "assumed"}


@pytest.mark.parametrize(
    ("engine", "name", "dtype"),
    [("sglang", "trainium2", "bf16"), ("trtllm", "trainium3", "bf16"), ("trtllm", "mi350x", "bf16"), ("sglang", "strix-halo", "bf16"),
     ("vllm", "strix-halo", "fp8"), ("trtllm", "arc-pro-b60", "bf16"), ("trtllm", "cpu", "bf16"), ("vllm", "cpu", "fp8")],
)  # fmt: skip
def test_what_no_engine_runs_on_a_device_is_refused(engine, name, dtype):
    device = DEVICES[name]
    assert unsupported_reason(profile(engine), device.architecture, dtype) is not None


def test_vllm_has_its_own_limits_on_a_processor():
    """vllm/engine/arg_utils.py of 0.32, `get_batch_defaults`: 128 sequences and 2,048 tokens behind a server, on a processor of any memory."""
    chosen = scheduling(profile("vllm", "0.32.0"), 476 * GIB, "cpu")
    assert (chosen.max_num_seqs, chosen.max_num_batched_tokens) == (128, 2048)
    assert scheduling(profile("vllm", "0.32.0"), 178 * GIB, "blackwell").max_num_seqs == 1024


def test_every_device_that_planners_ask_for_is_there():
    assert {name for line in rows("names")["asked_for"] for name in line} <= set(device_names())


@pytest.mark.parametrize("name", device_names())
def test_file_is_named_for_its_device_and_every_figure_has_a_source(name):
    entry = DEVICES[name]
    assert entry.name == name
    keys = {source.key for source in entry.sources}
    assert entry.labels.keys() == entry.figure_sources.keys()
    for field, sources in entry.figure_sources.items():
        assert sources == ("assumed",) or set(sources) <= keys, field
        assert (entry.labels[field] == "assumed") == ("assumed" in sources)
    assert all(source.title and source.url and source.url.startswith("https://") for source in entry.sources)
    first = (ROOT / "hardware_specs" / f"{name}.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../docs/schema/hardware.json"


def test_no_alias_hides_a_name_and_every_alias_leads_somewhere():
    assert not set(device_aliases()) & set(device_names())
    assert set(device_aliases().values()) <= set(device_names())


@pytest.mark.parametrize(
    ("name", "dtype", "sparse_tflops"),
    [
        # NVIDIA datasheets print these with sparsity: A100 (June 2021), H100 (2022), H200 (2023), L4, L40S (2023)
        ("a100-sxm-80gb", "bf16", 624), ("a100-sxm-80gb", "int8", 1248),
        ("h100-sxm", "bf16", 1979), ("h100-sxm", "fp8", 3958), ("h100-pcie", "bf16", 1513), ("h100-pcie", "fp8", 3026),
        ("h200-sxm", "bf16", 1979), ("h200-sxm", "fp8", 3958), ("h200-nvl", "bf16", 1671), ("h200-nvl", "fp8", 3341),
        ("l4", "bf16", 242), ("l4", "fp8", 485), ("l40s", "fp8", 1466), ("b200", "fp8", 9000),
        ("gb200", "bf16", 5000), ("mi300x", "bf16", 2614.9), ("mi300x", "fp8", 5229.8), ("rtx-5090", "fp4", 3352),
    ],
)  # fmt: skip
def test_dense_rate_is_half_of_what_the_datasheet_prints_with_sparsity(name, dtype, sparse_tflops):
    # sheets round to three or four digits
    assert DEVICES[name].peak_flop_per_s[dtype] == pytest.approx(sparse_tflops * 1e12 / 2, rel=0.012)


@table
def test_link_rate_is_per_direction(name, both_directions_gb_per_s):
    # NVIDIA and AMD datasheets add both directions
    assert DEVICES[name].link_bytes_per_s == both_directions_gb_per_s * 1e9 / 2


@pytest.mark.parametrize(
    ("name", "printed_mib"),
    # nvidia-smi totals: thundergolfer.com/blog/nvidia-gpu-memory-capacity
    [("h200-sxm", 143771), ("h100-sxm", 81559), ("a100-sxm-80gb", 81920), ("a100-sxm-40gb", 40960), ("a10", 23028), ("l40s", 46068), ("l4", 23034), ("t4", 15360)],
)  # fmt: skip
def test_driver_total_is_what_nvidia_smi_prints(name, printed_mib):
    entry = DEVICES[name]
    assert entry.driver_memory_bytes == printed_mib * 2**20
    # a process is given a little less
    assert 0 < entry.driver_memory_bytes - entry.reported_memory_bytes < 1.0 * GIB


@pytest.mark.parametrize("name", device_names())
def test_figures_are_of_a_plausible_size(name):
    entry = DEVICES[name]
    # HBM and GDDR come in binary sizes that the name plate calls GB, so up to 7.4 % more than decimal
    assert 0.9 < entry.reported_memory_bytes / entry.memory_bytes < 1.08
    assert 2e11 < entry.memory_bytes_per_s < 2.5e13
    peaks = entry.peak_flop_per_s
    sixteen = peaks.get("bf16") or peaks["fp16"]
    assert 5e13 < sixteen < 1.1e16
    ridge = sixteen / entry.memory_bytes_per_s
    assert 20 < ridge < 800
    if "fp8" in peaks and entry.vendor in ("nvidia", "amd") and name not in ANNOUNCED:
        assert peaks["fp8"] == pytest.approx(2 * sixteen, rel=0.02)
    assert entry.node_devices >= 1
    assert entry.link_domain_devices >= 1


def test_every_device_of_the_measured_results_is_found(measured):
    names = {row["gpu"] for table in ("runs", "kernels", "starts") for row in measured.table(table)} - {""}
    assert len(names) > (30 if measured.whole else 25)
    for name in names:
        assert device(name).name in DEVICES


def test_engine_total_is_what_engines_print(measured):
    rows = [row for row in measured.table("starts") if row["gpu_memory_gib"]]
    assert len(rows) > (40 if measured.whole else 20)
    for row in rows:
        total = device(row["gpu"]).reported_memory_bytes / GIB
        assert total == pytest.approx(float(row["gpu_memory_gib"]), abs=0.05)


@pytest.mark.parametrize("written", ["H100-SXM", "h100_sxm", "H100 SXM", "h100", "H100-80GB", "nvidia-h100"])
def test_case_and_punctuation_do_not_matter(written):
    assert device(written).name == "h100-sxm"


def test_wrong_name_suggests_near_ones():
    with pytest.raises(InputError, match="unknown hardware 'h1000': did you mean 'h100'"):
        device("h1000")


def test_device_can_be_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine ü.yaml"
    text = (ROOT / "hardware_specs" / "l4.yaml").read_text().replace("name: l4", "name: mine")
    path.write_text(text)
    assert device(str(path)).name == "mine"
    path.write_text(text.replace("242 TFLOP/s", "484 TFLOP/s"))
    assert device(str(path)).peak_flop_per_s["fp8"] == 484e12


def test_documented_files_of_the_folder_are_read():
    for name in ("aliases", "partitions", "prices", "token_prices"):
        assert read_yaml(ROOT / "hardware_specs" / f"{name}.yaml", kind="data").value


with (ROOT / "tests/data/device_names.csv").open() as printed:
    PRINTED = list(csv.DictReader(printed))


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: row["printed"])
def test_names_that_tools_and_clouds_print_find_their_device_or_machine(row):
    """Names of nvidia-smi, rocm-smi, torch, node labels and clouds; an empty answer is a device that is not in the catalogue, or a shared one."""
    try:
        found = device(row["printed"]).name
    except InputError:
        sold = sku_of(row["printed"])
        found = sold.record.sku if sold else ""
    assert found == row["finds"]


@table
def test_a_label_of_a_node_is_its_value(label, finds):
    """Labels of GPU feature discovery, GKE, Karpenter and the AMD GPU operator."""
    assert device(label).name == finds


@table
def test_a_name_that_is_no_device_says_what_it_is(name, words):
    with pytest.raises(InputError) as error:
        device(name)
    assert words in str(error.value)


def test_no_two_devices_have_the_same_words():
    for name, known in (device_aliases() | {name: name for name in device_names()}).items():
        assert known_words().get(words_of_name(name), known) == known
    assert device("NVIDIA A100").name == device("a100").name == "a100-sxm-80gb"
    assert device("nvidia-tesla-a100").name == "a100-sxm-40gb"
