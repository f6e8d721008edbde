"""What a card can do and is decides what is planned; what is planned covers what serving does, and is held out by whole models."""

from collections import Counter

import numpy as np
import pytest
import torch

from capplan.calibrate.fit import launch_fit
from capplan.calibrate.kernels import calls_of, matmul, routings
from capplan.calibrate.kernels.case import Case
from capplan.calibrate.kernels.engines import TO_DEVICE
from capplan.calibrate.machine import abilities_of, capability_of
from capplan.calibrate.shapes import CONFIGURATION, cases, held_out
from capplan.readers.calibration.file import same_device
from capplan.readers.calibration.record import Machine, Measurement
from capplan.readers.catalogue.hardware import device, device_names
from tests.calibrate.faked.card import B200, MI300X
from tests.tables import rows

CAPABILITIES = ("", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "gfx90a", "gfx942", "gfx950")


def formats(capability):
    return {case.dtype for case in cases(abilities_of(capability), quick=False) if case.operator == "matmul"}


@pytest.mark.parametrize(
    ("capability", "has", "lacks"),
    [
        ("7.0", {"fp16"}, {"bf16", "fp8", "int8"}),
        ("7.5", {"fp16", "int8"}, {"bf16", "fp8"}),
        ("8.0", {"bf16", "int8", "w4a16"}, {"fp8", "fp8_row"}),
        ("8.9", {"bf16", "fp8", "fp8_row"}, {"fp8_block", "nvfp4"}),
        ("9.0", {"bf16", "fp8", "fp8_row", "fp8_block"}, {"mxfp8", "nvfp4"}),
        ("10.0", {"bf16", "fp8", "mxfp8", "nvfp4"}, {"fp8_block"}),
        ("gfx90a", {"bf16"}, {"fp8"}),
        ("gfx942", {"bf16", "fp8"}, {"nvfp4", "w4a16"}),
    ],
)
def test_formats_follow_the_capability(capability, has, lacks):
    found = formats(capability)
    assert has <= found
    assert not lacks & found


def test_amd_s_first_fp8_has_no_negative_zero_and_a_cache_behind_the_l2():
    assert abilities_of("gfx942").fp8 == torch.float8_e4m3fnuz
    assert abilities_of("gfx950").fp8 == torch.float8_e4m3fn
    assert abilities_of("gfx942").cache_bytes == 256 * 2**20
    assert abilities_of("gfx90a").cache_bytes is None


def test_operands_of_an_mi300x_rotate_over_four_infinity_caches(insert):
    _, target = insert(MI300X)
    assert capability_of(MI300X.properties()) == "gfx942"
    assert target.machine.cache_bytes == 256 * 2**20
    assert target.cold_bytes == 4 * 256 * 2**20


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_third_of_each_kind_is_held_out_by_whole_matrices_and_heads(capability):
    planned = cases(abilities_of(capability), quick=False)
    unseen = held_out(planned)
    assert unseen == held_out(planned)
    for kind, count in Counter(case.kind for case in planned).items():
        members = [place for place, case in enumerate(planned) if case.kind == kind]
        held = unseen.intersection(members)
        if count >= 6:
            assert count / 6 <= len(held) <= count / 1.8, kind
        names = CONFIGURATION.get(kind[0], ())
        owners = {place: tuple(planned[place].shape[name] for name in names) for place in members}
        if names and len(set(owners.values())) >= 3 and count >= 6:
            assert not {owners[p] for p in held} & {owners[p] for p in members if p not in held}, kind


def test_shapes_go_beyond_powers_of_two_and_beyond_plain_attention():
    planned = cases(abilities_of("9.0"), quick=False)
    rows = {case.shape["rows"] for case in planned if case.operator == "matmul" and case.dtype == "bf16"}
    assert any(np.log2(row) % 1 for row in rows)
    assert {1.0, 8192.0} <= rows
    for operator, name in (
        ("prefill_attention", "past_tokens"), ("prefill_attention", "window_tokens"),
        ("decode_attention", "query_tokens"), ("decode_attention", "page_tokens"),
    ):  # fmt: skip
        values = {case.shape[name] for case in planned if case.operator == operator}
        assert len(values) > 1, (operator, name)


ONE_TOKEN = {
    "tokens": 1.0, "experts": 256.0, "experts_per_token": 8.0, "inputs": 7168.0, "intermediate": 256.0,
}  # fmt: skip
"""In one of eight ranks of DeepSeek-V3."""


def test_one_token_reads_a_few_experts_so_the_same_weights_are_routed_many_ways():
    """On a B200 the L2 has 126 MB: eight of 256 experts of DeepSeek-V3 are 88 MB, and 57 to 76 % of a repeat was found in it."""
    touched = matmul.touched_bytes(ONE_TOKEN, "bf16")
    assert touched == pytest.approx(88e6, rel=0.01)
    assert touched * routings(touched, 1, 4 * 126e6) >= 4 * 126e6


def test_calls_of_experts_share_the_weights_and_differ_in_the_routing(insert, monkeypatch):
    from capplan.calibrate import kernels

    _, target = insert(B200)
    monkeypatch.setattr(kernels, "MOST_ROUTINGS", 64)
    case = Case("experts", "bf16", ONE_TOKEN)
    calls = calls_of(case, matmul.WAYS["grouped_mm"], target.device, target.cold_bytes)
    assert len(calls) >= 6
    assert len({id(call.args[2]) for call in calls}) == 1
    assert len({call.keywords["routing"].counts for call in calls}) == len(calls)


def test_routings_are_the_same_in_every_run_and_count_every_token():
    device = torch.device("cpu")
    one, same, other = (matmul.draw_routing(40, 16, 4, device, number) for number in (3, 3, 4))
    assert one.counts == same.counts != other.counts
    assert sum(one.counts) == 40 * 4
    assert one.starts.tolist() == np.concatenate(([0], np.cumsum(one.counts)[:-1])).tolist()
    assert matmul.read_routing(one.scores, 4).counts == one.counts


@pytest.mark.parametrize("way", [matmul.PADDED, matmul.SEPARATE])
def test_every_way_to_multiply_experts_gives_the_same(way):
    torch.manual_seed(5)
    tokens, gate_up, down = torch.randn(30, 8), torch.randn(6, 8, 20), torch.randn(6, 10, 8)
    routing = matmul.draw_routing(30, 6, 2, torch.device("cpu"), 1)
    plain = matmul.routed_experts(tokens, routing.scores, gate_up, down, 2)
    found = matmul.routed_experts(tokens, routing.scores, gate_up, down, 2, way=way, routing=routing)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)


def test_pinned_memory_is_filled_from_one_draw():
    call = TO_DEVICE.ways["pinned copy"].built(
        {"moved_bytes": float(3 * 2**20 + 5)}, "int8", torch.device("cpu")
    )
    assert call().unique().numel() > 200


def test_a_launch_is_the_whole_time_between_two_launches():
    rows = [
        Measurement(name, "fp32", {}, seconds, 0.0, 9)
        for name, seconds in (("launch_eager", 6e-6), ("launch", 2e-6))
    ]
    assert launch_fit(rows)["launch/fp32"].numbers["launch_s"].value == pytest.approx(6e-6)


GIB = 1024**3


def entries(name, multiprocessors, gib):
    machine = Machine("cuda:0", name, "0" * 12, None, None, "2", None, gib * GIB, multiprocessors, 1e7)
    return {entry for entry in device_names() if same_device(machine, device(entry))}


@pytest.mark.parametrize(("name", "multiprocessors", "gib", "wanted"), rows("names")["drivers"])
def test_a_driver_s_name_finds_its_catalogue_entry_and_no_other(name, multiprocessors, gib, wanted):
    assert entries(name, multiprocessors, gib) == ({wanted} if wanted else set())
