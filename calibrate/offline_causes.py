"""Experiments on offline maxima that are predicted too slow or too fast: `python -m calibrate.offline_causes FOLDER`.

FOLDER holds serving_measured.csv.gz. Each experiment changes one thing and predicts the runs of its set again; nothing is fitted or written.
docs/evidence/what-was-tried.md has the figures and what was concluded.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from calibrate.accuracy_tables import percent
from calibrate.host_rows import Item, items_of, predicted_row
from capplan.accuracy.bounded import network_class
from capplan.engine.profile import ExpertKernel
from capplan.readers.catalogue.efficiency import is_card
from capplan.recorded.measured import measured_table
from capplan.replica.replica import replica_of
from capplan.replica.spec import ReplicaSpec
from docs.generators.page_tables import Table

SMALL_MIXTURES = frozenset({"mixtral-8x7b", "gpt-oss-20b", "qwen3-30b-a3b"})
"""Mixtures of experts of up to 47 billion parameters in the table."""

Change = Callable[[ReplicaSpec], ReplicaSpec]


def with_numbers(spec: ReplicaSpec, part: str, value: float) -> ReplicaSpec:
    """Return a replica all of whose kernels have one value for the fitted numbers whose names contain a part."""
    fits = {
        key: replace(fit, numbers={**fit.numbers, **{name: value for name in fit.numbers if part in name}})
        for key, fit in spec.efficiency.fits.items()
    }
    return replace(spec, efficiency=replace(spec.efficiency, fits=fits))


def with_expert_kernel(spec: ReplicaSpec, name: str) -> ReplicaSpec:
    """Return a replica whose routed experts run with a kernel."""
    kernel = ExpertKernel(name, frozenset({spec.device.architecture.lower()}))
    return replace(spec, profile=replace(spec.profile, expert_kernels=(kernel,)))


def with_host(spec: ReplicaSpec, name: str, factor: float) -> ReplicaSpec:
    """Return a replica with a multiple of one host time."""
    host = spec.profile.host
    own = replace(host, **{name: factor * getattr(host, name)})
    return replace(spec, profile=replace(spec.profile, host=own))


def with_slower_links(spec: ReplicaSpec, factor: float) -> ReplicaSpec:
    """Return a replica whose GPUs reach each other at a share of the bandwidth."""
    pcie, link = spec.device.pcie_bytes_per_s, spec.device.link_bytes_per_s
    slower = replace(
        spec.device, pcie_bytes_per_s=pcie and pcie * factor, link_bytes_per_s=link and link * factor
    )
    return replace(spec, device=slower)


@dataclass(frozen=True, slots=True)
class RunSet:
    """Runs that are predicted to one side, and the experiments on them."""

    name: str
    holds: Callable[[Item], bool]
    experiments: tuple[tuple[str, Change], ...]


def _network(item: Item) -> str:
    return network_class(item.replica.spec.network)


def _small(item: Item) -> bool:
    return item.parts["model"] in SMALL_MIXTURES


def _fp4_on_blackwell(item: Item, model: str) -> bool:
    return item.parts["model"] == model and item.parts["device"] in {"b200", "gb200"}


def _card(item: Item) -> bool:
    return is_card(item.replica.spec.device)


def _over_pcie(item: Item, ranks: float) -> bool:
    sharding = item.replica.spec.sharding
    return _card(item) and _network(item) == "dense" and float(sharding.tensor) == ranks


EVENLY = ("ranks and experts loaded evenly (`router_skew` 0)", partial(with_numbers, part="router_skew", value=0.0))  # fmt: skip
COOL = ("matmuls without the loss of a hot loop (`sustained_loss` 0)", partial(with_numbers, part="sustained_loss", value=0.0))  # fmt: skip
TRTLLM_GEN = ("trtllm-gen's kernel for the experts", partial(with_expert_kernel, name="flashinfer_trtllm"))
NO_SEQUENCE_TIME = ("no host time per sequence", partial(with_host, name="sequence_s", factor=0.0))
PCIE = (
    ("no crowding on PCIe (exponent 0 for 0.3)", partial(with_numbers, part="crowding_exponent", value=0.0)),
    ("all ranks share one path (exponent 1)", partial(with_numbers, part="crowding_exponent", value=1.0)),
    COOL,
    ("half of the PCIe bandwidth, as through host memory", partial(with_slower_links, factor=0.5)),
)
SETS = (
    RunSet(
        "latent attention",
        lambda item: _network(item) == "mla",
        (TRTLLM_GEN, EVENLY, NO_SEQUENCE_TIME),
    ),
    *(
        RunSet(f"{model} in fp4 on B200 and GB200", partial(_fp4_on_blackwell, model=model), (TRTLLM_GEN,))
        for model in ("llama4-maverick", "qwen3-235b", "qwen3-30b-a3b")
    ),
    RunSet(
        "small mixtures, server GPUs",
        lambda item: _small(item) and not _card(item),
        (EVENLY, COOL, NO_SEQUENCE_TIME),
    ),
    RunSet(
        "mixtures on graphics cards",
        lambda item: _network(item) == "moe" and _card(item),
        (EVENLY, COOL, NO_SEQUENCE_TIME),
    ),
    RunSet(
        "dense, one graphics card",
        lambda item: _over_pcie(item, 1.0) and float(item.replica.spec.sharding.pipeline) == 1.0,
        (COOL, NO_SEQUENCE_TIME),
    ),
    *(
        RunSet(f"dense over {ranks} cards on PCIe", partial(_over_pcie, ranks=float(ranks)), PCIE)
        for ranks in (4, 8)
    ),
)


def ratio_of(item: Item) -> float | None:
    """Return predicted over measured output tokens/s of a run; None where it is not predicted."""
    row = predicted_row(item, item.replica.spec.profile.host)
    found = [p.predicted / p.measured for p in row.predictions if p.metric.endswith(":output_tok_s") and p.predicted]  # fmt: skip
    return found[0] if found else None


def changed(item: Item, change: Change) -> Item:
    """Return a run on a replica that differs in one thing."""
    return replace(item, replica=replica_of(change(item.replica.spec)))


def experiment_rows(items: Sequence[Item]) -> list[list[str]]:
    """Return a line of the table for every set as shipped and for each of its experiments."""
    rows = []
    for own in SETS:
        runs = [item for item in items if own.holds(item)]
        models = len({item.parts["model"] for item in runs})
        for name, change in (("as shipped", lambda spec: spec), *own.experiments):
            ratios = [ratio for item in runs if (ratio := ratio_of(changed(item, change))) is not None]
            if ratios:
                error = median(abs(ratio - 1.0) for ratio in ratios)
                rows.append(
                    [own.name, f"{len(ratios)} of {models}", name, f"{median(ratios):.2f}", percent(error)]
                )
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print the table of experiments."""
    rows = measured_table(Path(arguments[0]) / "serving_measured.csv.gz", "serving")[1]
    items = items_of([row for row in rows if row["kind"] == "offline_max"])
    titles = ["offline maxima", "runs and models", "changed", "predicted / measured, median", "median error"]
    print(Table(titles, experiment_rows(items)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
