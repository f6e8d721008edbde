"""What is offered to somebody whose model does not fit: the smallest change of each kind, and only changes that help."""

from dataclasses import replace

import pytest

from capplan.engine.lookup import profile
from capplan.families.model_config import read_network
from capplan.fleet.fit import changes_that_fit, fit, longest_context_tokens
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.replica.replica import memory_of
from capplan.replica.spec import ReplicaSpec

L4 = device("l4")
WIDE = replace(L4, link_domain_devices=64)
"""As many devices in one link domain as no L4 has."""


def model(billions, context=8192):
    """Return a model of so many billion parameters, with heads for 64 ranks: 56 layers, most of it in their feed-forward."""
    attention = 2 * 4096 * (4096 + 512)
    inner = round((billions * 1e9 - 2 * 32000 * 4096) / 56 - attention) // (3 * 4096) // 128 * 128
    return read_network({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": inner, "vocab_size": 32000, "head_dim": 64,
        "num_hidden_layers": 56, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": context,
    }, "large")  # fmt: skip


def spec(network, gpu=L4, tensor=1.0, context=4096, kv="bf16"):
    return ReplicaSpec(
        network, gpu, efficiency_for(L4), profile("vllm"), Sharding(tensor), kv, context, 8, 2048
    )


def kinds(changes):
    return {change["change"].split()[0]: change["change"].split(maxsplit=1)[1] for change in changes}


@pytest.mark.parametrize(("billions", "ranks"), [(25, 4), (50, 8), (110, 16), (230, 32), (480, 64)])
def test_as_many_ranks_are_offered_as_the_weights_need(billions, ranks):
    """20 GB of each L4 hold weights: twice the billions, over a power of two of ranks."""
    asked = spec(model(billions), WIDE)
    assert not memory_of(replace(asked, sharding=Sharding(ranks / 2))).fits
    offered = kinds(changes_that_fit(asked))
    assert offered["--tensor-parallel"] == str(ranks)
    (change,) = (c for c in changes_that_fit(asked) if c["change"].startswith("--tensor"))
    assert change["gpus"] == ranks
    assert (
        change["max_concurrency"]
        == memory_of(replace(asked, sharding=Sharding(float(ranks)))).max_concurrency
    )


def test_ranks_beyond_a_link_domain_are_not_offered():
    # Sixteen would do, but eight are all there are; with lighter weights four are enough.
    (both,) = changes_that_fit(spec(model(110), L4))
    assert both["change"] == "--tensor-parallel 4 --weight-dtype int4"
    # From two ranks on the next is four, not one.
    assert kinds(changes_that_fit(spec(model(20), L4, tensor=2.0)))["--tensor-parallel"] == "4"


@pytest.mark.parametrize(("billions", "dtype"), [(12, "fp8"), (25, "int4")])
def test_the_widest_weights_that_fit_are_offered_and_never_wider_ones(billions, dtype):
    network = model(billions)
    assert kinds(changes_that_fit(spec(network)))["--weight-dtype"] == dtype
    held = in_weight_format(network, "int8")
    offered = kinds(changes_that_fit(spec(held, replace(L4, reported_memory_bytes=8e9))))
    assert offered.get("--weight-dtype") not in {"fp8", "int8"}


def test_a_lighter_cache_is_offered_where_one_sequence_is_what_does_not_fit():
    network = model(8, context=2**20)
    room = longest_context_tokens(spec(network))
    asked = spec(network, context=int(room * 1.5))
    assert not memory_of(asked).fits
    offered = kinds(changes_that_fit(asked))
    assert offered["--kv-dtype"] == "fp8"
    assert offered["--max-model-len"] == str(room // 16 * 16)
    assert (
        kinds(changes_that_fit(replace(asked, kv_format="fp8", max_model_len=int(room * 2.5)))).get(
            "--kv-dtype"
        )
        is None
    )
    # Twice what fits needs half of the bytes, not less.
    assert "--kv-dtype" not in kinds(changes_that_fit(spec(network, context=int(room * 2.2))))


def test_a_longer_context_than_fits_is_cut_to_what_fits_alone():
    network = model(8, context=2**20)
    found = fit(spec(network))
    assert found.fits
    assert found.changes == ()
    assert memory_of(spec(network, context=found.longest_context_tokens)).fits
    assert not memory_of(spec(network, context=found.longest_context_tokens + 16)).fits
    # The context that is asked for does not count, and no more is reached than the model has.
    assert longest_context_tokens(spec(network, context=512)) == found.longest_context_tokens
    assert longest_context_tokens(spec(model(8, context=2048))) == 2048
    assert longest_context_tokens(spec(model(110))) == 0


def test_the_smallest_larger_device_of_the_same_vendor_is_offered():
    others = [device(name) for name in ("h200-sxm", "mi300x", "h100-sxm", "l40s", "a10g")]
    assert kinds(changes_that_fit(spec(model(14)), others))["--hardware"] == "l40s"
    assert kinds(changes_that_fit(spec(model(30)), others))["--hardware"] == "h100-sxm"
    assert kinds(changes_that_fit(spec(model(50)), others))["--hardware"] == "h200-sxm"
    assert "--hardware" not in kinds(changes_that_fit(spec(model(90)), others))


def test_changes_come_with_the_fewest_devices_first_and_in_pairs_only_where_none_helps_alone():
    changes = changes_that_fit(spec(model(20), L4), [device("h200-sxm")])
    gpus = [change["gpus"] for change in changes]
    assert gpus == sorted(gpus)
    assert all(" --" not in change["change"] for change in changes)
    (both,) = changes_that_fit(spec(model(110), L4), [device("h200-sxm")])
    assert both["change"].count("--") == 2
    # 220 GB in 16 bit: two H200, or eight L4 with int8 weights; the fewest devices win.
    assert both["change"] == "--tensor-parallel 2 --hardware h200-sxm"
    assert both["gpus"] == 2
    assert changes_that_fit(spec(model(3000), L4)) == ()
