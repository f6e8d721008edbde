"""What a plan was made from, for its plan file: scenario, files, model, engine, prices, and what its engines are started with."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capplan.fleet.load.demand import planned_demand
from capplan.fleet.plan import Plan
from capplan.fleet.price import ChosenPrice
from capplan.fleet.question import spec_of_layout
from capplan.fleet.scenario import LoraTerms
from capplan.questions.fleet import AskedFleet
from capplan.readers.catalogue.model import model_source
from capplan.readers.text_file import MAX_BYTES, digest, path_of, whole_path
from capplan.replica.plans import engine_scheduling, plans_of


def plan_inputs(asked: AskedFleet, chosen: Plan | None) -> dict[str, Any]:
    """Return the inputs of a plan, as `readers.plan_record.InputsRow` reads them.

    Parameters
    ----------
    asked : the question of the scenario
    chosen : the recommended plan; None where there is none

    Returns
    -------
    the scenario as written, a digest of every file that it names, and what was looked up for it
    """
    scenario, question = asked.scenario, asked.question
    lengths = question.demand.lengths
    return {
        "content": scenario.written,
        "files": list(_named_files(asked)),
        "model": {
            "name": scenario.model,
            "revision": scenario.revision,
            "source": model_source(scenario.model, scenario.revision).title,
        },
        "engine": {
            "name": scenario.engine,
            "version": question.profile.asked_version or question.profile.version,
        },
        "targets": {target.key: target.limit_s for target in scenario.slo.targets},
        "confidence": scenario.slo.confidence,
        "budget_usd_per_month": scenario.budget_usd_per_month,
        "headroom_fraction": scenario.fleet.headroom_fraction,
        "request_rate": planned_demand(
            question.demand, chosen.responses_s if chosen else 0.0
        ).peak_requests_per_s,
        "input_tokens": float(lengths.input_tokens),
        "output_tokens": float(lengths.output_tokens),
        "prices": [_price(name, price) for name, price in asked.prices.items() if price],
        "launch": _launch(asked, chosen) if chosen else None,
    }


def _named_files(asked: AskedFleet) -> Iterator[dict[str, Any]]:
    scenario = asked.scenario
    folder = Path(scenario.path).resolve().parent
    written: Mapping[str, Any] = scenario.written
    traces = [
        (f"traffic[{at}].trace", item.get("trace")) for at, item in enumerate(written.get("traffic", []))
    ]
    paths = [(key, str(whole_path(folder / path_of(name)))) for key, name in traces if name]
    paths += [
        (key, path)
        for key, path in (
            ("calibration", scenario.calibration),
            ("prices.file", scenario.price_file),
            ("hosted.file", scenario.hosted.file),
            ("model", scenario.model),
            ("speculation.draft", scenario.speculation.draft if scenario.speculation else None),
        )
        if path
    ]
    for key, path in paths:
        at = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
        if (sha256 := digest(at, MAX_BYTES)) is not None:
            yield {"key": key, "path": str(at), "sha256": sha256}


def _price(hardware: str, price: ChosenPrice) -> dict[str, Any]:
    return {
        "hardware": hardware,
        "usd_per_gpu_hour": price.usd_per_hour,
        "low_usd_per_gpu_hour": price.low_usd_per_hour,
        "high_usd_per_gpu_hour": price.high_usd_per_hour,
        "energy_usd_per_gpu_hour": price.energy_usd_per_hour,
        "commitment": price.commitment,
        "offers": price.offers,
        "providers": [record.provider for record in price.records],
        "dates": [record.date for record in price.records],
        "sources": [record.source for record in price.records],
    }


def _adapters(lora: LoraTerms) -> dict[str, Any]:
    return {
        "adapters": lora.adapters,
        "slots": lora.slots,
        "rank": lora.rank,
        "modules": lora.modules and list(lora.modules),
        "fully_sharded": lora.fully_sharded,
    }


def _launch(asked: AskedFleet, plan: Plan) -> dict[str, Any]:
    """Return what one engine is started with; of a plan with separate pools, one that decodes."""
    scenario, group = asked.scenario, plan.groups[-1]
    spec = spec_of_layout(group.layout, group.weight_dtype, asked.question)
    limits, engine = engine_scheduling(spec), plans_of([spec]).launch
    drafts = plan.draft_tokens if plan else None
    speculation = scenario.speculation
    return {
        "max_model_len": asked.question.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "gpu_memory_utilization": scenario.gpu_memory_utilization,
        "memory_fraction": float(np.ravel(engine.memory_fraction)[0]),
        "devices_per_server": group.layout.device.node_devices,
        "vendor": group.layout.device.vendor,
        "runner": "pooling" if scenario.pooled else "generate",
        "chunked_prefill": scenario.chunked_prefill,
        "adapters": scenario.lora and _adapters(scenario.lora),
        "prefix_caching": scenario.prefix_caching,
        "published_weight_dtypes": list(asked.published_formats),
        "speculation": speculation
        and {"method": speculation.method, "draft": speculation.draft, "draft_tokens": drafts},
        "kv_offload": [
            {"name": tier.name, "capacity_bytes": tier.capacity_bytes} for tier in scenario.kv_offload
        ],
    }
