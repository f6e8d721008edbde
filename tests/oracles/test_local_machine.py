"""`capplan detect` and `fit any --hardware this`, with tools on the path that print what the documentation of each says."""

import json
import shlex

import pytest

from capplan.cli.main import main
from capplan.hardware.device import engine_memory_bytes
from capplan.questions.runnable import BY_QUALITY, models_that_run
from capplan.readers import local_machine
from capplan.readers.catalogue.hardware import device
from capplan.readers.local_machine import ask_tool, device_here
from capplan.report.answers.local_machine import more_here
from capplan.scenario.flags import ServingFlags
from tests.files import written_to
from tests.tables import table

GIB = 2.0**30

ROCM = {
    "card0": {"Card Series": "AMD Radeon RX 7900 XTX", "Card Model": "0x744c", "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
              "VRAM Total Memory (B)": "25753026560", "VRAM Total Used Memory (B)": "27033600"},
    "system": {"Driver version": "6.8.5"},
}  # fmt: skip
STRIX = {"card0": {"Card Series": "AMD Radeon 8060S Graphics", "VRAM Total Memory (B)": "536870912"}}


def mac(chip, cores, memory):
    hardware = {
        "_name": "hardware_overview",
        "chip_type": chip,
        "machine_name": "Mac Studio",
        "number_processors": "proc 16:12:4",
        "physical_memory": memory,
    }
    display = {"_name": "kHW_AppleM4MaxItem", "spdisplays_mtlgpufamilysupport": "spdisplays_metal3", "sppci_bus": "spdisplays_builtin",
               "sppci_cores": cores, "sppci_device_type": "spdisplays_gpu", "sppci_model": chip}  # fmt: skip
    return json.dumps({"SPHardwareDataType": [hardware], "SPDisplaysDataType": [display]})


def lscpu(name, sockets=1):
    return f"Architecture:           x86_64\nVendor ID:              AuthenticAMD\nModel name:             {name}\nThread(s) per core:     2\nSocket(s):              {sockets}\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Put tools that print a text on an otherwise empty path, and let the kernel state a memory."""

    def made(gib=62.7, **tools):
        folder = tmp_path / "bin"
        folder.mkdir()
        for tool, text in tools.items():
            said = written_to(tmp_path / f"{tool}.txt", text)
            path = written_to(folder / tool.replace("_smi", "-smi"), f"#!/bin/sh\nexec /bin/cat '{said}'\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(f"MemTotal:       {gib * 2**20:.0f} kB\nMemFree:        1024 kB\n" if gib else "")
        return local_machine.local_machine(meminfo=meminfo)

    return made


@pytest.mark.parametrize(
    ("tools", "hardware", "memory_gib"),
    [
        ({"nvidia_smi": "NVIDIA GeForce RTX 3060, 12288\n"}, "rtx-3060", 12),
        ({"nvidia_smi": "NVIDIA GeForce RTX 3060, 8192\n"}, "rtx-3060-8gb", 8),
        ({"nvidia_smi": "NVIDIA GeForce RTX 4060 Ti, 16380\n"}, "rtx-4060-ti:16gb", 16),
        ({"nvidia_smi": "NVIDIA H100 80GB HBM3, 81559\n"}, "h100-sxm", 79.6),
        ({"gib": 119.7, "nvidia_smi": "NVIDIA GB10, [N/A]\n"}, "gb10", 119.7),
        ({"rocm_smi": json.dumps(ROCM)}, "rx-7900-xtx", 24),
        ({"rocm_smi": json.dumps(STRIX)}, "strix-halo-64gb", 63.2),
        ({"system_profiler": mac("Apple M4 Max", "40", "64 GB"), "sysctl": "0\n"}, "apple-m4-max-40core:64gb", 64),
        ({"system_profiler": mac("Apple M1", "8", "16 GB")}, "apple-m1-8core:16gb", 16),
    ],
)  # fmt: skip
def test_what_tools_print_finds_the_device_with_its_memory(machine, tools, hardware, memory_gib):
    here = machine(**tools)
    (found,) = here.devices
    assert found.hardware == hardware == device_here(here)
    assert found.count == 1
    assert found.memory_bytes == pytest.approx(memory_gib * GIB, rel=0.02)
    entry = device(hardware)
    assert (found.memory_bytes_per_s, found.usable_bytes) == (
        entry.memory_bytes_per_s,
        engine_memory_bytes(entry),
    )


def test_equal_cards_are_counted_and_the_largest_is_this_machine(machine):
    here = machine(
        nvidia_smi="NVIDIA GeForce RTX 3090, 24576\nNVIDIA GeForce RTX 3060, 12288\nNVIDIA GeForce RTX 3060, 12288\n"
    )
    assert [(one.hardware, one.count) for one in here.devices] == [("rtx-3090", 1), ("rtx-3060", 2)]
    assert device_here(here) == "rtx-3090"


def test_the_owner_of_a_mac_may_give_its_gpu_more(machine):
    here = machine(system_profiler=mac("Apple M1 Max", "32", "32 GB"), sysctl="26000\n")
    assert here.devices[0].usable_bytes == 26000 * 2.0**20


@table
def test_a_processor_states_the_bandwidth_of_its_memory(machine, name, sockets, gib, hardware, gb_per_s):
    here = machine(gib=gib, lscpu=lscpu(name, sockets))
    assert (here.host.hardware, here.host.sockets) == (hardware, sockets)
    assert here.host.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert device_here(here) == hardware


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"nvidia_smi": "NVIDIA GeForce RTX 4090, 49140\n"}, "'NVIDIA GeForce RTX 4090' with 52 GB is not one device of the catalogue\n  the catalogue has rtx-4090"),
        ({"nvidia_smi": "NVIDIA Imaginary 9000, 24576\n"}, "the catalogue has none of this name"),
        ({"system_profiler": mac("Apple M3 Ultra", "", "96 GB")}, "the catalogue has apple-m3-ultra-60core:96gb, apple-m3-ultra-80core:96gb"),
        ({"lscpu": lscpu("AMD EPYC")}, "no GPU was found, and 'AMD EPYC' is not in the catalogue"),
        ({}, "no GPU was found, and 'no processor' is not in the catalogue"),
    ],
)  # fmt: skip
def test_a_device_that_is_not_known_is_refused_with_the_way_out(machine, tools, words):
    from capplan.errors import InputError

    with pytest.raises(InputError) as error:
        device_here(machine(**tools))
    assert words in str(error.value)
    assert "--hardware NAME" in str(error.value)


def test_every_tool_says_why_it_prints_nothing(tmp_path, monkeypatch):
    for name, script in (("slow", "exec /bin/sleep 600"), ("broken", "exit 9"), ("odd", "printf '\\377'")):
        path = written_to(tmp_path / name, f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    (tmp_path / "nothing").write_text("no program")
    (tmp_path / "nothing").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = {
        name: ask_tool(name, longest_s=0.5).problem for name in ("slow", "broken", "nothing", "missing")
    }
    assert problems["broken"] == "exit code 9"
    assert problems["missing"] == "not found"
    assert problems["slow"].startswith("no answer within")
    assert problems["nothing"].startswith("cannot be started")
    assert ask_tool("odd").problem is None


@table
def test_what_is_not_a_list_of_devices_finds_none(machine, text):
    here = machine(rocm_smi=text, system_profiler=text, lscpu=text)
    assert (here.devices, here.host.printed) == ((), None)


def test_detect_prints_tables_and_json(machine, monkeypatch, capsys, capplan):
    here = machine(
        nvidia_smi="NVIDIA GeForce RTX 3090, 24576\n", lscpu=lscpu("AMD EPYC 7343 16-Core Processor")
    )
    monkeypatch.setattr(local_machine, "local_machine", lambda: here)
    assert main(["detect"]) == 0
    printed = capsys.readouterr().out
    assert "1 x rtx-3090; host: epyc-7343:64gb" in printed
    assert "rocm-smi" in printed
    assert "not found" in printed
    result = capplan.result("detect")
    assert result["devices"][0]["hardware"] == "rtx-3090"
    assert result["host"]["memory_bytes_per_s"] == 204.8e9
    assert result["tools"]["system_profiler"] == "not found"


def test_the_best_quantisation_that_fits_is_that_of_fit_and_its_speed_that_of_estimate(capsys):
    """It had a memory of its own, by which models fitted that `fit` rejected."""
    flags = ["--hardware", "rtx-3070", "--offline", "--format", "json"]
    served = [*flags, "--engine", "llamacpp", "--max-num-seqs", "1"]

    def printed(*words):
        code = main([*words])
        return code, json.loads(capsys.readouterr().out)["result"]

    (row,) = [
        row
        for row in models_that_run(device("rtx-3070"), ServingFlags(weight_dtype="q6_k"))
        if row.model == "meta-llama/Llama-3.1-8B"
    ]
    longest = ["--max-model-len", str(row.longest_context_tokens)]
    code, fits = printed("fit", row.model, *served, "--weight-dtype", "q6_k", *longest)
    assert (code, fits["fits"]) == (0, True)
    longer = ["--max-model-len", str(row.longest_context_tokens + 1)]
    assert printed("fit", row.model, *served, "--weight-dtype", "q6_k", *longer)[0] == 3
    assert printed("fit", row.model, *served, "--weight-dtype", "q8_0", "--max-model-len", "4096")[0] == 3
    lengths = ["--input-tokens", "1", "--output-tokens", "2", "--concurrency", "1", "--max-model-len", "4096"]
    _, estimate = printed("estimate", row.model, *served, "--weight-dtype", "q6_k", *lengths)
    assert row.generated_tokens_per_s == pytest.approx(1.0 / estimate["tpot_s"]["mean"], rel=0.02)


def test_what_else_the_machine_has_is_said(machine):
    here = machine(
        gib=62.7,
        nvidia_smi="NVIDIA GeForce RTX 3090, 24576\nNVIDIA GeForce RTX 3090, 24576\n",
        lscpu=lscpu("AMD Ryzen 9 7950X 16-Core Processor"),
    )
    devices, host = more_here(here, "rtx-3090")
    assert "has 2 of them: -pp 2" in devices
    assert "--host-bandwidth '83 GB/s' --host-memory '67 GB'" in host
    assert more_here(here, "rtx-4090") == ()


@pytest.mark.long
def test_every_model_that_fits_a_context_reaches_it(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = models_that_run(device("rtx-3060:12gb"), ServingFlags(weight_dtype="q4_k_m", max_model_len=32_000))
    assert rows
    assert min(row.longest_context_tokens for row in rows) >= 32_000


@pytest.mark.long
def test_models_that_do_not_fit_run_with_a_part_on_the_host(monkeypatch):
    """A card of 12 GB alone, with a host of 64 GB, and twice: what is split follows, fastest first, and no host is too small."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    card, host = device("rtx-3060:12gb"), {"host_bandwidth": 80e9, "host_memory": 64e9}
    alone, split, twice = (
        models_that_run(card, ServingFlags(weight_dtype="q4_k_m", **more))
        for more in ({}, host, {"pipeline_parallel": 2})
    )
    names = [{row.model for row in rows} for rows in (alone, split, twice)]
    assert names[0] < names[1]
    assert names[0] < names[2]
    moved = [row for row in split if row.split]
    assert {row.model for row in moved} == names[1] - names[0]
    assert all(0.0 < row.host_weight_bytes <= 64e9 and "--n-" in row.split for row in moved)
    speeds = [row.generated_tokens_per_s for row in moved if row.generated_tokens_per_s]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.long
def test_fit_any_lists_models_by_quality_and_this_is_the_machine(machine, monkeypatch, capsys, capplan):
    here = machine(nvidia_smi="NVIDIA GeForce RTX 3070, 8192\n")
    monkeypatch.setattr(local_machine, "local_machine", lambda: here)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = capplan.result("fit", "any", "--hardware", "this")["models"]
    by_name = {row["model"]: row for row in models}
    assert by_name["meta-llama/Llama-3.1-8B"]["weight_dtype"] == "q6_k"
    places = [BY_QUALITY.index(row["weight_dtype"]) for row in models if row["weight_dtype"] in BY_QUALITY]
    assert places == sorted(places)
    assert not any("AWQ" in name or "GPTQ" in name for name in by_name)
    assert all(row["weight_bytes"] <= engine_memory_bytes(device("rtx-3070")) for row in models)
    assert (
        main(
            shlex.split("fit any --hardware rtx-3070 --max-model-len 32k --weight-dtype q4_k_m --format json")
        )
        == 0
    )
    narrow = json.loads(capsys.readouterr().out)["result"]["models"]
    assert {row["weight_dtype"] for row in narrow} == {"q4_k_m"}
    assert "fit any takes none" in capplan.refused("fit", "any", "--hardware", "rtx-3070", "-tp", "2")
