"""The table of cards, laptops, Macs and processors: sources, sizes, and the names that tools print."""

import csv
from pathlib import Path

import pytest

from capplan.errors import InputError
from capplan.hardware.device import engine_memory_bytes
from capplan.readers.catalogue.hardware import catalogue_name, device, device_aliases, device_names
from capplan.readers.catalogue.workstations import machine_parts, printed_candidates, workstation_names
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
DEVICES = {name: device(name) for name in workstation_names()}


def test_the_table_has_the_families_that_people_run_gguf_files_on():
    names = set(DEVICES)
    for chip in ("m1", "m2", "m3", "m4", "m5"):
        for tier in ("-", "-pro-", "-max-") + (() if chip == "m4" else ("-ultra-",)):
            assert len([name for name in names if name.startswith(f"apple-{chip}{tier}")]) >= 2
    wanted = "rtx-2060 rtx-3060 rtx-4060-ti rtx-4090-laptop rtx-5080 rx-6600 rx-7900-xtx rx-9070-xt arc-a770 arc-b580 epyc-7002 epyc-9004 epyc-9005"
    assert set(wanted.split()) <= names
    assert not names & {*device_names(), *device_aliases()}


@pytest.mark.parametrize("name", DEVICES)
def test_every_figure_has_a_source_and_a_plausible_size(name):
    entry = DEVICES[name]
    keys = {source.key for source in entry.sources}
    assert entry.labels.keys() == entry.figure_sources.keys()
    assert {"memory_bytes", "memory_bytes_per_s"} <= entry.labels.keys()
    for field, sources in entry.figure_sources.items():
        assert sources == ("assumed",) or set(sources) <= keys, field
    assert all(source.title and source.url and source.url.startswith("https://") for source in entry.sources)
    assert 1e10 < entry.memory_bytes_per_s < 2e12
    if "fp16" in entry.peak_flop_per_s and entry.architecture != "pascal":
        assert 3 < entry.peak_flop_per_s["fp16"] / entry.memory_bytes_per_s < 500
    assert entry.name == name


@pytest.mark.parametrize("name", DEVICES)
def test_a_title_finds_its_device_or_those_that_share_it(name):
    entry = DEVICES[name]
    found = printed_candidates(f"{entry.title.partition(':')[0]} {entry.memory_bytes / 1e9:.0f} GB")
    assert not found or name in {one.partition(":")[0] for one in found}, found


with (ROOT / "tests/data/workstation_names.csv").open(encoding="utf-8") as printed:
    PRINTED = list(csv.DictReader(printed))


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: row["printed"])
def test_names_that_tools_print_find_their_devices(row):
    """Names of nvidia-smi, rocm-smi, system_profiler, lscpu, llama-bench and Vulkan; several are what a name does not tell apart, none is what the table does not have."""
    known = catalogue_name(row["printed"])
    assert " ".join((known,) if known else printed_candidates(row["printed"])) == row["finds"]


def test_a_name_of_several_devices_lists_them():
    with pytest.raises(InputError, match="may be any of: apple-m3-max-30core, apple-m3-max-40core"):
        device("Apple M3 Max")
    assert device("Apple M3 Max 36GB").name == "apple-m3-max-30core:36gb"


@pytest.mark.parametrize(
    ("name", "limit_mb"),
    # ggml_metal_init: recommendedMaxWorkingSetSize, as llama.cpp prints it: github.com/ggml-org/llama.cpp/issues/5207 (8 GB), 2182 (16, 32 and 64 GB)
    [("apple-m1-8core:8gb", 5726.63), ("apple-m1-pro-16core:16gb", 11453.25), ("apple-m1-max-32core:32gb", 22906.50), ("apple-m2-max-38core:64gb", 51539.61)],
)  # fmt: skip
def test_a_mac_gives_its_gpu_what_metal_recommends(name, limit_mb):
    assert engine_memory_bytes(device(name)) == pytest.approx(limit_mb * 1e6, rel=1e-3)


def test_a_device_that_is_sold_with_several_sizes_takes_one_of_them():
    assert device("rtx-4060-ti").labels["memory_bytes"] == "assumed"
    assert device("rtx-4060-ti:8gb").labels["memory_bytes"] == "spec"
    assert device("rtx-4060-ti:8 GB").memory_bytes == 8e9
    assert device("epyc-9005:384gb").memory_bytes == 384e9
    with pytest.raises(
        InputError, match=r"is not sold with 12 GB\n  it is sold with: rtx-4060-ti:8gb, rtx-4060-ti:16gb"
    ):
        device("rtx-4060-ti:12gb")
    with pytest.raises(InputError, match="h100-sxm has 80 GB"):
        device("h100:40gb")


@table
def test_a_line_of_several_devices_is_taken_apart(printed, parts):
    assert machine_parts(printed) == tuple(map(tuple, parts))
    assert all(catalogue_name(name) for name, _ in parts)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["apple-m4-10core:32gb", "epyc-9005:384gb", "p40", "rx-6900-xt"])
def test_engines_of_servers_are_refused_where_they_do_not_run(engine, name):
    from capplan.engine.lookup import profile, unsupported_reason

    assert unsupported_reason(profile(engine), device(name).architecture, "bf16") is not None


def test_a_plan_knows_the_table_that_its_device_is_from():
    from capplan.readers.plan_file import changed_data, data_digests

    used = data_digests(["rtx-4060-ti:8gb"], "llama-3.1-8b")
    assert used["device rtx-4060-ti:8gb"]
    assert changed_data(used) == ()
    assert changed_data({**used, "device rtx-4060-ti:8gb": "0" * 16}) == ("device rtx-4060-ti:8gb",)
