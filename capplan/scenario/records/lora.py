"""LoRA adapters as a scenario or flags state them -> the adapters of a network."""

from dataclasses import replace

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.scenario import LoraTerms
from capplan.model.adapters import MODULES, adapted_matrices
from capplan.model.network import Adapters, Network
from capplan.operators.adapters import sequences_with_slots
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Lora

DEFAULT_RANK = 16


def lora_terms(reading: Reading, lora: Lora | None) -> LoraTerms | None:
    """Return the adapters of a scenario; None where it has none."""
    if lora is None:
        return None
    slots = lora.adapters if lora.max_loras is None else lora.max_loras
    if slots > lora.adapters:
        raise reading.refuse(
            ("lora", "max_loras"),
            f"{slots} slots are more than the {lora.adapters} adapters; give at most as many, or leave it out",
        )
    if lora.max_lora_rank is None:
        reading.assume(f"adapters of rank {DEFAULT_RANK}", "lora.max_lora_rank")
    return LoraTerms(
        adapters=lora.adapters,
        slots=slots,
        rank=lora.max_lora_rank or DEFAULT_RANK,
        modules=None if lora.modules is None else tuple(dict.fromkeys(lora.modules)),
        fully_sharded=bool(lora.fully_sharded),
        adapted_fraction=1.0 if lora.share is None else lora.share,
    )


def with_adapters(network: Network, terms: LoraTerms, prompt_tokens: float | None = None) -> Network:
    """Return a network with its adapters.

    Parameters
    ----------
    network : in the weight format it is served in
    terms : its adapters
    prompt_tokens : [tokens]
        computed in the mean for a request

    Raises
    ------
    InputError
        the network has no such matrix
    """
    if network.encoder is not None:
        raise InputError(
            f"{network.name}: adapters of an encoder-decoder are not modelled, since they stand beside its encoder too\n  leave them out"
        )
    modules = terms.modules or MODULES
    known = _modules_of(network)
    wrong = next((name for name in terms.modules or () if name not in known), None)
    if wrong is not None:
        raise unknown("module", wrong, known, place="lora.modules")
    if not known.intersection(modules):
        raise InputError(
            f"{network.name}: lora.modules: none of {', '.join(modules)} is a matrix of this model\n  it has: {', '.join(sorted(known))}"
        )
    return replace(
        network,
        adapters=Adapters(
            terms.adapters,
            terms.slots,
            terms.rank,
            tuple(name for name in modules if name in known),
            network.activation_format,
            terms.fully_sharded,
            terms.adapted_fraction,
            prompt_tokens,
        ),
    )


def _modules_of(network: Network) -> set[str]:
    """Return the names of the matrices of a network that an adapter can stand beside."""
    names = {f"{matrix.name}_proj" for layer in network.layers for matrix in layer.projections}
    every = (*MODULES, *names)
    return {
        name
        for name in dict.fromkeys(every)
        for layer in dict.fromkeys(network.layers)
        if adapted_matrices(layer, (name,))
    }


def adapter_assumptions(network: Network, place: str) -> tuple[Assumption, ...]:
    """Return what is assumed about the adapters of a network, which a key or flag replaces; nothing without them."""
    adapters = network.adapters
    if adapters is None:
        return ()
    said = [
        Assumption(
            f"all {adapters.adapters} adapters are equally popular, which is the most of them in a step, and stand beside "
            f"{', '.join(adapters.modules)} in {adapters.format}; prefixes are shared by requests of one adapter only",
            place,
        ),
        Assumption(
            "kernels of adapters reach the bandwidth of kernels that move bytes, and the rate of plain products; not measured",
            place,
        ),
    ]
    if any(layer.experts for layer in network.layers):
        said.append(Assumption("routed experts have no adapters", place))
    if adapters.missing_fraction:
        most = float(sequences_with_slots(adapters.adapters, adapters.slots, adapters.adapted_fraction))
        said.append(
            Assumption(
                f"with {adapters.slots} slots {adapters.missing_fraction:.0%} of the requests have their adapter copied from the host first, "
                f"and at most {max(int(most), 1):,} sequences run, which use {adapters.slots} adapters in the mean",
                f"{place}.max_loras",
            )
        )
    return tuple(said)
