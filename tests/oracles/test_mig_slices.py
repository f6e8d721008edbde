"""MIG slices against NVIDIA's guide and driver lists, and their packing against placements tried one by one."""

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.hardware.device import cuts, packing
from capplan.money.several_models import fewest_when_cut
from capplan.readers.catalogue.hardware import device, partitioned_devices, partitions, slices

GUIDE = {
    "h100-sxm": {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
    "h200-sxm": {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
    "b200": {"1g.23gb": 7, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1, "7g.180gb": 1},
    "a100-sxm-40gb": {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1},
    "a30": {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1},
    "rtx-pro-6000-server": {"1g.24gb": 4, "2g.48gb": 2, "4g.96gb": 1},
    "rtx-pro-5000": {"1g.24gb": 2, "2g.48gb": 1},
    "rtx-pro-4500": {"1g.16gb": 2, "2g.32gb": 1},
}
"""Number of instances, as the tables of the user guide have it."""
LISTED = {"a100-sxm-40gb": [14, 14, 28, 42, 56, 98], "h100-sxm": [16, 26, 32, 60, 64, 132]}
"""SM, as `nvidia-smi mig -lgip` prints it."""
CUT = [
    ("a100-sxm-40gb", ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"]),
    ("a100-sxm-40gb", ["2g.10gb", *["1g.5gb"] * 5]),
    ("a100-sxm-40gb", ["3g.20gb", "3g.20gb"]),
    ("a100-sxm-40gb", ["4g.20gb", "3g.20gb"]),
    ("h100-sxm", ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]),
    ("h200-sxm", ["2g.35gb", *["1g.18gb"] * 5]),
]
"""Devices that the user guide, or a page of a user, shows cut like this."""
TOO_MUCH = [
    ("a100-sxm-40gb", ["4g.20gb", "4g.20gb"]),
    ("h100-sxm", ["2g.20gb"] * 4),
    ("h100-sxm", ["1g.10gb"] * 8),
    ("h100-sxm", ["3g.40gb", "3g.40gb", "1g.10gb"]),
    ("h100-sxm", ["7g.80gb", "1g.10gb"]),
]
ASKED = st.sampled_from(["h100-sxm", "a30", "b200"]).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.lists(st.integers(0, 4), min_size=len(partitions(name)), max_size=len(partitions(name))).filter(
            lambda counts: 0 < sum(counts) <= 9
        ),
    )
)


def amounts(name, asked):
    return tuple(asked.count(profile.profile) for profile in partitions(name))


def fits_on(profiles, wanted, devices):
    """Return whether instances can be placed, by trying every place of every instance in turn."""
    instances = [profile for profile, count in zip(profiles, wanted, strict=True) for _ in range(count)]

    @cache
    def placed(at, taken):
        if at == len(instances):
            return True
        profile = instances[at]
        for index, start in product(range(devices), profile.starts):
            slots = sum(1 << slot for slot in range(start, start + profile.memory_slices))
            if not taken[index] & slots:
                mine = sorted((*taken[:index], taken[index] | slots, *taken[index + 1 :]))
                if placed(at + 1, tuple(mine)):
                    return True
        return False

    return placed(0, (0,) * devices)


@pytest.mark.parametrize("name", GUIDE)
def test_a_device_is_cut_into_as_many_slices_as_the_guide_says(name):
    profiles = partitions(name)
    most = [max(way[at] for way in cuts(profiles)) for at in range(len(profiles))]
    assert {profile.profile: count for profile, count in zip(profiles, most, strict=True)} == GUIDE[name]
    assert [profile.per_device for profile in profiles] == most


@pytest.mark.parametrize("name", LISTED)
def test_slices_have_the_multiprocessors_that_the_driver_lists(name):
    assert [item.multiprocessors for item in slices(device(name))] == LISTED[name]


@pytest.mark.parametrize(("name", "asked"), CUT)
def test_devices_that_were_cut_like_this_hold_it(name, asked):
    assert packing(partitions(name), amounts(name, asked)) == (amounts(name, asked),)


@pytest.mark.parametrize(("name", "asked"), TOO_MUCH)
def test_what_no_placement_allows_takes_another_device(name, asked):
    assert len(packing(partitions(name), amounts(name, asked))) == 2


@pytest.mark.long
@given(ASKED)
def test_packing_takes_as_few_devices_as_placing_the_slices_one_by_one(asked):
    name, wanted = asked
    profiles = partitions(name)
    found = packing(profiles, tuple(wanted))
    assert [sum(column) for column in zip(*found, strict=True)] == list(wanted)
    for way in found:
        assert fits_on(profiles, way, 1)
    assert fits_on(profiles, wanted, len(found))
    assert not fits_on(profiles, wanted, len(found) - 1)


@pytest.mark.long
@given(
    st.lists(
        st.dictionaries(st.integers(0, 5), st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3
    )
)
def test_the_profiles_of_several_models_are_those_of_the_best_of_all_choices(replicas):
    profiles = partitions("h100-sxm")
    choice, found = fewest_when_cut(profiles, replicas)

    def devices(way):
        wanted = [0] * len(profiles)
        for at, counts in zip(way, replicas, strict=True):
            wanted[at] += counts[at]
        return len(packing(profiles, tuple(wanted)))

    assert len(found) == devices(choice) == min(devices(way) for way in product(*replicas))


@pytest.mark.parametrize("name", partitioned_devices())
def test_slices_on_one_device_never_have_more_than_the_device(name):
    whole, parts = device(name), slices(device(name))
    for way in cuts(partitions(name)):
        held = [part for part, count in zip(parts, way, strict=True) for _ in range(count)]
        for field in ("multiprocessors", "reported_memory_bytes", "memory_bytes_per_s", "memory_bytes"):
            together, all_of_it = sum(getattr(part, field) for part in held), getattr(whole, field)
            assert together <= all_of_it * (1 + 1e-9), (way, field)
        for dtype, peak in whole.peak_flop_per_s.items():
            assert sum(part.peak_flop_per_s[dtype] for part in held) <= peak * (1 + 1e-9)


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200", "a30"])
def test_the_largest_slice_is_the_device_without_its_links(name):
    whole, largest = device(name), slices(device(name))[-1]
    assert largest.memory_bytes_per_s == whole.memory_bytes_per_s
    assert largest.peak_flop_per_s == whole.peak_flop_per_s
    assert largest.multiprocessors == whole.multiprocessors
    assert (largest.link, largest.link_domain_devices, largest.node_devices) == (None, 1, 1)
