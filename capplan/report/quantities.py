"""The table of quantities: of each number of a plan its formula, and where each argument comes from.

`capplan explain` and the page on the numbers of a plan read it; units and titles are in `screen_units`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

METHODOLOGY, SIMULATION, ACCURACY = "docs/methodology.md", "docs/simulation.md", "docs/accuracy.md"
MONEY, MEMORY, KERNELS = "docs/money.md", "docs/memory.md", "docs/evidence/kernels.md"
PHASES, WORKLOADS = "docs/disaggregation.md", "docs/workloads.md"
CHOSEN = "of the layout that meets the targets at the least cost"
"""What the search chose among all layouts, which no formula gives."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a plan."""

    meaning: str
    """Phrase for the page on the numbers of a plan."""
    formula: str = CHOSEN
    """Function of the package whose docstring states the formula, such as `money.price.usd_per_month`; else the formula, or how the number is found, in words."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Another number of the plan by its path, or an entry of `ARGUMENTS`, and its letter in the formula."""
    page: str = METHODOLOGY
    """Page of the documentation that says more."""
    predicted: bool = False
    """Whether it rests on step times, so that it is as certain as the kernels of the device; else it follows from its arguments."""

    @property
    def function(self) -> str | None:
        """Function that states the formula; None if words do."""
        return self.formula if _FUNCTION.fullmatch(self.formula) else None


_FUNCTION = re.compile(r"[a-z_]+(\.\w+)+")


class Argument(NamedTuple):
    """An argument of a formula that is no number of the plan."""

    label: str
    """spec, config, derived, measured or assumed."""
    source: str
    """Key of the scenario, datasheet, measurement or rule that states it."""
    name: str = ""
    """Name that `explain` shows; empty: its own."""


_ENGINE_LIMIT = "scenario: {}; unless stated, the default of the engine"
_LOGGED = "docs/memory.md: logged starts of the engine"
ARGUMENTS: Mapping[str, Argument] = {
    "all_replica_s": Argument("derived", "sum over all classes of n (p + d): all requests over the rate at which a replica just meets the targets, or by the busy time of a pool", "replica_s"),
    "block_tokens": Argument("assumed", "the engine"),
    "busy_usd": Argument("derived", "bill.usd_per_month less idle_usd and outside_usd"),
    "class_decode_s": Argument("derived", "its part of each decode step at the batch of the peak, (o - 1) t / n, scaled to the load of the plan", "decode_s"),
    "class_prefill_s": Argument("derived", "its prompt of mean length by itself in a step, all sequences of the request, scaled to the load of the plan", "prefill_s"),
    "class_mean_fraction": Argument("config", "scenario: traffic, mean rate of each class over its peak", "mean_rate_fraction"),
    "class_rate": Argument("config", "scenario: traffic, rate of each class at the peak; of users over the think time and the response time", "request_rate"),
    "class_traffic": Argument("config", "scenario: traffic, the line of the class"),
    "class_users": Argument("config", "scenario: traffic, users", "users"),
    "conversation_requests": Argument("config", "scenario: traffic, requests_per_conversation", "requests_per_conversation"),
    "paid_hours": Argument("derived", "365 x 24 / 12 hours of an average month, or the job", "hours"),
    "paid_replica_s": Argument("derived", "GPUs of the order, or of the parts of the mix while they are paid for, over the GPUs of a replica, times the time"),
    "waiting_usd": Argument("derived", "explain bill.idle_usd", "idle_usd"),
    "faster_request": Argument("derived", "the request at rank k"),
    "finished_output_tokens": Argument("config", "of the requests that finished in the measured time", "output_tokens"),
    "finished_requests": Argument("derived", "requests that finished in the measured time", "finished"),
    "gaps": Argument("derived", "every gap between two tokens of a request, in a histogram: docs/simulation.md"),
    "good_requests": Argument("derived", "requests within all SLO targets", "requests_within_limits"),
    "looser_limit": Argument("derived", "a looser limit to compare with, rounded to two digits", "limit_s"),
    "plan_usd_per_month": Argument("derived", "explain usd_per_month", "usd_per_month"),
    "quantile_fraction": Argument("derived", "the percentile that is asked for"),
    "rank": Argument("derived", "whole part of q (N - 1): requests from the fastest on, from 0"),
    "run": Argument("derived", "the run, request by request: docs/simulation.md"),
    "run_requests": Argument("derived", "requests of the run that have this latency", "requests"),
    "run_sum": Argument("derived", "sum over these requests"),
    "size_usd_per_hour": Argument("derived", "the cheapest order of these GPUs, electricity included", "usd_per_hour"),
    "sized_confidence": Argument("derived", "one of the few confidences that capplan fleet sizes for, whatever the scenario asks for", "confidence"),
    "slo_limit": Argument("config", "scenario: slo", "limit_s"),
    "slower_request": Argument("derived", "the request at rank k + 1"),
    "classes_outside": Argument("config", "scenario: traffic, outside: of each class", "usd"),
    "cheapest_api_usd": Argument("derived", "explain apis[0].usd_per_month", "usd_per_month"),
    "cheapest_api_outside_usd": Argument("derived", "explain apis[0].outside_usd", "outside_usd"),
    "own_usd": Argument("derived", "explain own.usd_per_month", "usd_per_month"),
    "own_outside_usd": Argument("derived", "explain own.outside_usd_per_month", "outside_usd_per_month"),
    "priced_machines_usd": Argument("derived", "the machines with overhead, support plan and staging", "machines_usd"),
    "even_api_usd": Argument("spec", "the bill of the API for the requests of the break-even", "api_usd_per_month"),
    "even_machines_usd": Argument("derived", "the cheapest order of these replicas and their spares", "machines_usd_per_month"),
    "even_other_usd": Argument("config", "scenario: prices.other, and what requests take outside the GPUs, at the break-even", "other_usd_per_month"),
    "even_rate_limit": Argument("derived", "the smaller of both limits: explain sure_request_rate_limit_per_replica, and request_rate_limit_per_replica less headroom", "planned_request_rate_per_replica"),
    "even_replicas": Argument("derived", "at the break-even", "busy_replicas"),
    "group_busy": Argument("derived", "of each group, the share of its time in which a request is at work", "busy_fraction"),
    "group_busy_replicas": Argument("derived", "explain replicas, without spares", "busy_replicas"),
    "group_cost_fraction": Argument("derived", "of each group, its share of the cost of the machines"),
    "group_energy_usd_per_gpu_hour": Argument("config", "scenario: prices.electricity", "energy_usd_per_gpu_hour"),
    "group_powered_gpus": Argument("derived", "the GPUs of all machines of its order", "gpus"),
    "group_tdp_w": Argument("spec", "datasheet of the device", "watts"),
    "group_request_rate": Argument("derived", "explain request_rate_per_replica", "request_rate_per_replica"),
    "host_memory_usd": Argument("config", "scenario: prices.host_memory_per_gb and kv_offload"),
    "other_lines": Argument("config", "scenario: prices.other", "usd"),
    "overhead_fraction": Argument("config", "scenario: prices.overhead"),
    "provisioned_hours": Argument("config", "of a month, or of the job", "hours"),
    "provisioned_price": Argument("config", "scenario: hosted.provisioned.price", "usd_per_unit_hour"),
    "provisioned_units": Argument("derived", "for the busiest hour: scenario: hosted.provisioned", "units"),
    "rented_usd": Argument("derived", "explain usd_per_month", "usd_per_month"),
    "stated_people_usd": Argument("config", "scenario: prices.people", "people_usd_per_month"),
    "paid_gpus": Argument("derived", "GPUs of the machines of the order, those that are there already left out", "gpus"),
    "term_hours": Argument("derived", "365 x 24 / 12 hours of an average month, or the job", "hours"),
    "term_price": Argument("spec", "the offer in the price list", "usd_per_gpu_hour"),
    "tenant_classes": Argument("derived", "explain bill.classes, of each class of the tenant"),
    "before_gpus": Argument("derived", "explain gpus, of the month before", "gpus"),
    "busy_replicas": Argument("derived", "explain replicas, without spares"),
    "collective_bytes": Argument("measured", _LOGGED),
    "commitment_price": Argument("spec", "the offer of the commitment", "usd_per_gpu_hour"),
    "committed_hours": Argument("derived", "8,760 hours of a year, a twelfth of them a month", "hours"),
    "count": Argument("config", "scenario: fleet.survive"),
    "drawn_requests": Argument("derived", "requests of a simulated run, the warm-up left out", "requests"),
    "energy_usd_per_gpu_hour": Argument("config", "scenario: prices.electricity"),
    "facility_ratio": Argument("config", "scenario: energy.facility_ratio; 1 unless stated"),
    "fixed_usd_per_gpu_hour": Argument("spec", "at all hours; the offer of the commitment"),
    "gpus_per_server": Argument("config", "the order, else scenario: energy.gpus_per_server; 8 unless stated"),
    "graph_base_bytes": Argument("measured", _LOGGED),
    "graph_bytes": Argument("measured", f"{_LOGGED}; of a layer and a captured size"),
    "headroom_fraction": Argument("config", "scenario: fleet.headroom"),
    "high_slowness_ratio": Argument("measured", "90% point of measured over predicted step times", "slowness_ratio"),
    "host_watts": Argument("assumed", "scenario: energy.host, of each device"),
    "hours": Argument("derived", "365 x 24 / 12 hours of an average month"),
    "hours_to_repair": Argument("config", "scenario: fleet.time_to_repair"),
    "interval": Argument("measured", "measured over predicted, of results with similar load"),
    "jobs": Argument("config", "scenario: traffic, requests of each job and their rate"),
    "kg_co2_per_kwh": Argument("config", "scenario: energy.grid"),
    "kv_bytes_per_element": Argument("config", "scenario: kv_dtype, else config.json of the model"),
    "line_price": Argument("config", "the offer, or scenario: prices", "usd_each"),
    "line_quantity": Argument("derived", "the line of the plan, in its unit", "quantity"),
    "layers": Argument("config", "capplan model: its mixers"),
    "layout_gpus": Argument("derived", "explain gpus_per_replica", "gpus_per_replica"),
    "link": Argument("spec", "its rate in the catalogue, or fleet.kv_link"),
    "load_curve": Argument("config", "scenario: traffic, the load curve", "traffic"),
    "logged_non_torch_bytes": Argument("measured", _LOGGED, "non_torch_bytes"),
    "low_slowness_ratio": Argument("measured", "10% point of measured over predicted step times", "slowness_ratio"),
    "machine_failures_per_month": Argument("spec", "fleet.time_to_failure, or by GPUs as published for servers of eight H100 (arXiv 2407.21783)", "failures_per_month"),
    "max_model_len": Argument("config", "scenario: max_model_len; unless stated, room for the longest requests"),
    "max_num_batched_tokens": Argument("config", _ENGINE_LIMIT.format("max_num_batched_tokens")),
    "max_num_seqs": Argument("config", _ENGINE_LIMIT.format("max_num_seqs")),
    "mean_output_tokens_per_s": Argument("config", "scenario: traffic, mean over the hours that are paid for", "tokens_per_s"),
    "mean_total_tokens_per_s": Argument("config", "scenario: traffic, mean over the hours that are paid for", "tokens_per_s"),
    "output_tokens_per_s": Argument("config", "scenario: traffic, output tokens at the peak", "tokens_per_s"),
    "parallelism": Argument("derived", "the degrees of the layout"),
    "machine_count": Argument("derived", "the cheapest machines that hold the replicas", "machines"),
    "machine_gpus": Argument("spec", "the catalogue of machines", "gpus_per_machine"),
    "machine_usd_per_hour": Argument("spec", "the offer of the machine, with its provider and date"),
    "owned_machine_gpus": Argument("config", "scenario: fleet.own; zero for a machine that is to be ordered", "gpus_per_owned_machine"),
    "order_energy": Argument("config", "scenario: prices.electricity", "energy_usd_per_hour"),
    "offers": Argument("spec", "price lists, each offer with its date; else scenario: prices.per_gpu_hour"),
    "month_usd_per_hour": Argument("derived", "the cheapest order for the replicas of that month", "usd_per_hour"),
    "offer_ratio": Argument("spec", "lowest or highest offer over the likely one"),
    "powered_gpus": Argument("derived", "the GPUs of all machines of the order", "gpus"),
    "ordered_gpus": Argument("derived", "explain gpus", "gpus"),
    "outside": Argument("config", "scenario: traffic, outside: of each class"),
    "parameters": Argument("config", "capplan model"),
    "peak_today": Argument("derived", "the peak of today: explain request_rate_per_replica, times the busy replicas", "request_rate"),
    "people_of_owned": Argument("config", "scenario: commitments.owned.people", "people_usd_per_month"),
    "phase_watts": Argument("config", "scenario: energy, of the phase"),
    "powered_hours": Argument("derived", "of a month, or until the job is done", "hours"),
    "pure_usd_per_hour": Argument("spec", "every replica by its share of the time, at the offer of the commitment", "usd_per_hour"),
    "rack_limit_watts": Argument("config", "scenario: energy.rack_limit"),
    "replicas_held": Argument("derived", "machines x replicas that fit on each"),
    "request_rate": Argument("config", "scenario: traffic, at its peak"),
    "server_gpus": Argument("derived", "the order: GPUs of all servers of one kind, or bought by the piece", "gpus"),
    "servers": Argument("derived", "the order, or GPUs by the piece over those of a server"),
    "slo": Argument("config", "scenario: slo"),
    "slowest_ratio": Argument("derived", "largest factor on every step at which the targets hold"),
    "slowness": Argument("measured", "distribution of measured over predicted step times"),
    "slowness_correlation": Argument("measured", "of both latencies of measured runs"),
    "slowness_ratio": Argument("derived", "as predicted"),
    "stated_spare_replicas": Argument("config", "scenario: fleet.survive", "spare_replicas"),
    "sure_slowness_ratio": Argument("measured", "not exceeded with the required confidence in measured runs of servers", "slowness_ratio"),
    "tdp_w": Argument("spec", "datasheet of the device", "watts"),
    "total_tokens_per_s": Argument("config", "scenario: traffic, input and output tokens at the peak", "tokens_per_s"),
    "price_decline": Argument("config", "scenario: growth.gpu_price_decline"),
    "traffic_ratio": Argument("config", "scenario: growth, traffic of the month over that of today"),
    "usd_per_kwh": Argument("config", "scenario: prices.electricity"),
    "use_share": Argument("config", "scenario: traffic, the load curve", "used_fraction"),
    "used_usd_per_gpu_hour": Argument("spec", "while in use; the offer of the commitment"),
    "vocabulary_size": Argument("config", "config.json of the model"),
    "watts_per_server": Argument("spec", "the catalogue of machines, or the design power of its GPUs and the host"),
    "weight_bytes": Argument("config", "scenario: weight_dtype, else config.json of the model"),
}  # fmt: skip
"""Argument of a formula -> its label, and where it comes from; `explain` names the file, the engine or the offer of the plan."""

_AT_THE_PEAK = "simulated at the peak"
_PERCENTILES = "over N requests of a simulation of n replicas with T tokens of cache, at r each; a step takes the sum of its operators and of the host"
_LARGEST = "largest rate at which all targets hold if every step takes s times as long (s_0: TTFT, s_1: later tokens), simulated"
_IN_SERVICE = (
    "probability of at most s lost replicas: machines fail independently, f of them a month, each for r"
)
_ALL_MONTH = "the same at all times of a month: A exp(-nu T / A), nu being the part of the failures f that leaves too few: more than s lost within r"
_FAILING = {"machine_failures_per_month": "f", "hours_to_repair": "r", "spare_replicas": "s"}
_RANGE = (
    "month at price p of the replicas that the peak with headroom h takes if every step takes s times as long"
)
PLAN: Mapping[str, Quantity] = {
    "gpus": Quantity("GPUs of all replicas, spares included", "fleet.group.Group.gpus", {"replicas": "n", "gpus_per_replica": "g"}, predicted=True),
    "replicas": Quantity(
        "Copies of the served model, spares included",
        "max(ceil(R / ((1 - h) l)), ceil(R / c)) + s, or more where that is surer for about the same cost",
        {"request_rate": "R", "headroom_fraction": "h", "request_rate_limit_per_replica": "l", "sure_request_rate_limit_per_replica": "c", "stated_spare_replicas": "s"},
        SIMULATION,
    ),
    "spare_replicas": Quantity("Replicas beyond what the peak needs, for what may fail", "s", {"stated_spare_replicas": "s"}),
    "gpus_per_replica": Quantity("GPUs of one copy of the model"),
    "tensor_parallel": Quantity("GPUs that every matrix is split over"),
    "pipeline_parallel": Quantity("Stages that the layers are distributed over"),
    "expert_parallel": Quantity("Groups that whole experts are distributed over"),
    "data_parallel": Quantity("Attention groups, each with different sequences"),
    "max_num_batched_tokens": Quantity("Most tokens of a step of one engine, where the search chose them"),
    "draft_tokens": Quantity("Tokens drafted in one round of speculation"),
    "concurrency_per_replica": Quantity(
        "Mean number of requests in a replica at the peak, waiting ones included", "fleet.search.latencies.Latencies.concurrency",
        {"request_rate_per_replica": "r", "e2e_s.mean": "t"}, SIMULATION,
    ),
    "request_rate_per_replica": Quantity("Request rate of a replica at the peak, spares idle", "R / n", {"request_rate": "R", "busy_replicas": "n"}, SIMULATION),
    "request_rate_limit_per_replica": Quantity(
        "Largest rate of a replica at which all targets hold, as predicted", _LARGEST, {"slowness_ratio": "s", "slo": ""}, SIMULATION, predicted=True,
    ),
    "sure_request_rate_limit_per_replica": Quantity(
        "The same rate for a replica as slow as the required confidence allows for", _LARGEST, {"sure_slowness_ratio": "s", "slo": ""}, SIMULATION, predicted=True,
    ),
    "planned_request_rate_limit_per_replica": Quantity(
        "Largest rate that a replica is planned for: as predicted less headroom, and with the required confidence",
        "fleet.search.recommended.planned_rate_limit",
        {"request_rate_limit_per_replica": "r_p", "headroom_fraction": "h", "sure_request_rate_limit_per_replica": "r_c", "request_rate_per_replica": "r_0"},
        SIMULATION, predicted=True,
    ),
    "kv_cache_tokens": Quantity(
        "Tokens in the KV cache of a replica, as the engine prints it",
        "A / bytes of a token on one device, in blocks of k, filled with sequences of the usual length, times the groups",
        {"kv_bytes_available_per_gpu": "A", "kv_bytes_per_token": "g", "block_tokens": "k", "parallelism": ""}, MEMORY,
    ),
    "busy_fraction": Quantity("Share of the time in which a replica works, mean over the replicas at the peak", f"time in steps over time in service, {_AT_THE_PEAK}", page=PHASES),
    "usd_per_gpu_hour": Quantity("Price of one GPU for an hour: the median of the newest offers, or as the scenario states it", "p", {"offers": "p"}, MONEY),
    "usd_per_hour": Quantity(
        "Cost of an hour of all machines, electricity included where it is paid separately", "(p + e) g",
        {"usd_per_gpu_hour": "p", "energy_usd_per_gpu_hour": "e", "gpus": "g"}, MONEY,
    ),
    "energy_usd_per_hour": Quantity(
        "Electricity of an hour, on top of the price, at the thermal design power", "fleet.group.Group.energy_usd_per_hour",
        {"energy_usd_per_gpu_hour": "e", "powered_gpus": "g"}, MONEY,
    ),
    "usd_per_month": Quantity("Cost of 730 hours", "money.price.usd_per_month", {"usd_per_hour": "h", "hours": "n"}, MONEY),
    "usd_per_month_low": Quantity(
        "Cost of a month if replicas turn out as fast as in the best tenth of the cases", _RANGE,
        {"low_slowness_ratio": "s", "headroom_fraction": "h", "usd_per_gpu_hour": "p"}, ACCURACY, predicted=True,
    ),
    "usd_per_month_high": Quantity(
        "Cost of a month if replicas turn out as slow as in the worst tenth of the cases", _RANGE,
        {"high_slowness_ratio": "s", "headroom_fraction": "h", "usd_per_gpu_hour": "p"}, ACCURACY, predicted=True,
    ),
    "usd_per_million_output_tokens": Quantity(
        "Total cost over output tokens, at the peak", "money.price.usd_per_million_tokens", {"usd_per_hour": "h", "output_tokens_per_s": "r"}, MONEY,
    ),
    "usd_per_million_tokens": Quantity(
        "Total cost over input and output tokens, at the peak", "money.price.usd_per_million_tokens", {"usd_per_hour": "h", "total_tokens_per_s": "r"}, MONEY,
    ),
    "usd_per_million_output_tokens_at_mean": Quantity(
        "Total cost over output tokens, at the mean load", "money.price.usd_per_million_tokens", {"usd_per_hour": "h", "mean_output_tokens_per_s": "r"}, MONEY,
    ),
    "usd_per_million_tokens_at_mean": Quantity(
        "Total cost over input and output tokens, at the mean load", "money.price.usd_per_million_tokens", {"usd_per_hour": "h", "mean_total_tokens_per_s": "r"}, MONEY,
    ),
    "job_hours": Quantity("Hours until all jobs are done", "fleet.unit_costs.job_hours", {"jobs": ""}, MONEY),
    "usd_per_job": Quantity("Cost until all jobs are done", "h t", {"usd_per_hour": "h", "job_hours": "t"}, MONEY),
    "usd_per_thousand_requests": Quantity(
        "Cost of a thousand requests of jobs, or of embeddings and rerankers at the mean load", "1000 c / n of a job, else 1000 h / (3600 r)", {"usd_per_job": "c", "usd_per_hour": "h", "request_rate": "r"}, MONEY,
    ),
    "watts": Quantity("Thermal design power of all GPUs", "fleet.group.Group.watts", {"tdp_w": "w", "gpus": "g"}, MONEY),
    "slo_met_probability": Quantity(
        "Probability that all targets hold together at the peak",
        "accuracy.slowness.JointSlowness.probability", {"slowest_ratio": "s", "slowness": "F", "slowness_correlation": "r", "slo": ""}, ACCURACY,
    ),
    "target_probabilities.*": Quantity(
        "Probability that one target holds at the peak, whatever the others do",
        "P = F(s), at least that of all targets together", {"slowest_ratio": "s", "slowness": "F", "slo": ""}, ACCURACY,
    ),
    **{
        f"{latency}.*": Quantity(f"{name}: mean, median and percentiles", _PERCENTILES, {"drawn_requests": "N", "request_rate_per_replica": "r", "busy_replicas": "n", "kv_cache_tokens": "T"}, SIMULATION, predicted=True)
        for latency, name in (("ttft_s", "Time to first token"), ("tpot_s", "Time per output token after the first"), ("e2e_s", "Time until the last token"))
    },
    **{
        f"{latency}.{end}": Quantity(f"{words} bound of the measured mean in 80% of cases", "m q", {f"{latency}.mean": "m", "interval": "q"}, ACCURACY, predicted=True)
        for latency in ("ttft_s", "tpot_s")
        for end, words in (("low", "Lower"), ("high", "Upper"))
    },
    **{
        f"e2e_s.{end}": Quantity(f"{words} bound of the measured mean in 80% of cases: that of its parts", "t + (m - f) o / u", {f"ttft_s.{end}": "t", "e2e_s.mean": "m", "ttft_s.mean": "f", f"tpot_s.{end}": "o", "tpot_s.mean": "u"}, ACCURACY, predicted=True)
        for end, words in (("low", "Lower"), ("high", "Upper"))
    },
    "class_e2e_mean_s": Quantity("Mean response time of each class of requests at the peak, in the order of the traffic", _PERCENTILES, page=SIMULATION, predicted=True),
    "class_latencies": Quantity("Times to the first token, per output token and until the last token that the requests of each class of a mix see at the peak", "over the requests of the class, whichever group serves them", page=SIMULATION, predicted=True),
    "prefix_hit_fraction": Quantity("Share of the tokens of all prompts that prefix caches hold at the peak", f"cached over all input tokens, {_AT_THE_PEAK}", page=WORKLOADS, predicted=True),
    "class_prefix_hit_fractions": Quantity("Share of the prompt tokens of each class that prefix caches hold at the peak, in the order of the traffic", f"cached over all input tokens, {_AT_THE_PEAK}", page=WORKLOADS, predicted=True),
    "simulated_requests": Quantity("Requests of the simulation at the peak that the latencies of separate pools rest on", page=PHASES),
    **{
        f"offers.{side}.*": Quantity(f"Cost of an hour, a month, a year or a job at the {words} of its GPUs", "(p + e) g, times the hours", {"offers": "p", "energy_usd_per_gpu_hour": "e", "gpus": "g"}, MONEY)
        for side, words in (("low", "lowest offers"), ("likely", "offers that it is priced at"), ("high", "highest offers"))
    },
    "outside.longest_wait_s": Quantity("Longest wait of any class outside the GPUs", "workload.request_class.OutsideUse.longest_wait_s", {"outside": ""}, WORKLOADS),
    "outside.mean_wait_s": Quantity("Mean wait of all requests outside the GPUs", "workload.request_class.OutsideUse.mean_wait_s", {"outside": ""}, WORKLOADS),
    "outside.seen_ttft_s.*": Quantity("Time to the first token that users see, with the wait outside", "t + w", {"outside": "w"}, WORKLOADS, predicted=True),
    "outside.seen_e2e_s.*": Quantity("Time until the last token that users see, with the wait outside", "t + w", {"outside": "w"}, WORKLOADS, predicted=True),
    "outside.seen_by_class_s": Quantity("Latencies that users of each class see at the peak, with the wait of the class outside", "t + w", {"outside": "w"}, WORKLOADS, predicted=True),
    "outside.usd_per_month": Quantity("Price of a month of what requests take outside the GPUs", "workload.request_class.OutsideUse.usd", {"outside": ""}, WORKLOADS),
    "outside.usd_per_job": Quantity("Price of a job of what requests take outside the GPUs", "workload.request_class.OutsideUse.usd", {"outside": ""}, WORKLOADS),
    "order.gpus": Quantity("GPUs of all machines", "sum(n g)", {"machine_count": "n", "machine_gpus": "g"}, MONEY),
    "order.gpus_owned": Quantity("GPUs of the machines that are there already", "sum(n o)", {"machine_count": "n", "owned_machine_gpus": "o"}, MONEY),
    "order.gpus_idle": Quantity("GPUs of the machines that no replica uses", "o - g", {"order.gpus": "o", "gpus": "g"}, MONEY),
    "order.free_replicas": Quantity("Replicas that fit on idle GPUs at no cost", "h - n", {"replicas_held": "h", "replicas": "n"}, MONEY),
    "order.energy_usd_per_hour": Quantity("Electricity of all machines per hour, if it is paid separately", "e", {"order_energy": "e"}, MONEY),
    "order.usd_per_hour": Quantity("Cost of an hour of all machines", "sum(n p) + e", {"machine_count": "n", "machine_usd_per_hour": "p", "order_energy": "e"}, MONEY),
    "order.usd_per_month": Quantity("Cost of 730 hours of all machines", "money.price.usd_per_month", {"order.usd_per_hour": "h", "hours": "n"}, MONEY),
    "survival.count": Quantity("Replicas, machines, racks or zones that may fail at once", "n", {"count": "n"}, MONEY),
    "survival.time_fraction": Quantity("Share of the time in which enough replicas for the peak are in service", _IN_SERVICE, _FAILING, MONEY),
    "survival.month_probability": Quantity("Probability that enough replicas are in service throughout a month", _ALL_MONTH, _FAILING, MONEY),
    "survival.failures_per_month": Quantity("Machines of a plan that fail in a month", "f", {"machine_failures_per_month": "f"}, MONEY),
    "survival.hours_to_repair": Quantity("Mean time until a failed machine is repaired or replaced", "r", {"hours_to_repair": "r"}, MONEY),
    "survival.one_machine_more.usd_per_month": Quantity("Cost of a month of one machine more", "price of one more of the machines that the order has most of", page=MONEY),
    "survival.one_machine_more.time_fraction": Quantity("The share of the time with one machine more", _IN_SERVICE, _FAILING, MONEY),
    "survival.one_machine_more.month_probability": Quantity("The probability of a month with one machine more", _ALL_MONTH, _FAILING, MONEY),
    "transfer.bytes_per_request": Quantity(
        "KV cache that a prompt of mean length sends from the prefill to the decode pool",
        "KV cache and state of a prompt of mean length, with those of a draft model, each element once", {"link": ""}, PHASES,
    ),
    "transfer.transfer_s": Quantity("Time of one transfer", "bytes_per_request / (rate of all devices of the slower end) + latency", {"link": ""}, PHASES),
    "transfer.bytes_per_s": Quantity("Rate of all transfers at the peak", "bytes_per_request times the requests a second at the peak", {"link": ""}, PHASES),
    "transfer.prefill_load_fraction": Quantity(
        "Share of the time in which links of the prefill pool are busy", "bytes_per_s / (rate of all links of the prefill replicas at work)", {"link": ""}, PHASES,
    ),
    "transfer.decode_load_fraction": Quantity(
        "Share of the time in which links of the decode pool are busy", "bytes_per_s / (rate of all links of the decode replicas at work)", {"link": ""}, PHASES,
    ),
    "requests.*": Quantity("Requests that the router of a mix sends to a group: their share of all, and their lengths", "the rule of the router"),
    "usable_bytes_per_gpu": Quantity("Memory of a GPU that the engine may use", "by the budget of the engine", page=MEMORY),
    "weight_bytes_per_gpu": Quantity("Weights on the fullest GPU, adapters included", "model.sharding.weight_bytes_per_rank", {"parameters": "", "weight_bytes": "", "parallelism": ""}, MEMORY),
    "activation_bytes_per_gpu": Quantity(
        "Peak working memory of a step", "memory.rank.rank_activation_bytes", {"max_num_batched_tokens": "t", "max_num_seqs": "s", "vocabulary_size": "v"}, MEMORY,
    ),
    "non_torch_bytes_per_gpu": Quantity(
        "Kernels, handles and collective buffers", "h, and c more where ranks share fast links",
        {"logged_non_torch_bytes": "h", "collective_bytes": "c", "parallelism": ""}, MEMORY,
    ),
    "cuda_graph_bytes_per_gpu": Quantity("Captured graphs", "memory.rank.graph_bytes", {"graph_base_bytes": "g_0", "graph_bytes": "g", "layers": "", "max_num_seqs": "s"}, MEMORY),
    "kv_bytes_available_per_gpu": Quantity(
        "Memory of a GPU that is left for the KV cache", "memory.plan.memory_plan",
        {"usable_bytes_per_gpu": "U", "weight_bytes_per_gpu": "w", "activation_bytes_per_gpu": "a", "non_torch_bytes_per_gpu": "r"}, MEMORY,
    ),
    "reserved_bytes_per_sequence": Quantity(
        "Memory that the engine reserves for a sequence of maximum length, rounding and padding included", "memory.capacity.reserved_bytes_per_sequence",
        {"max_model_len": "n", "kv_bytes_per_token": "g", "block_tokens": "k", "parallelism": ""}, MEMORY,
    ),
    "max_concurrency": Quantity(
        "Sequences of maximum length that the cache holds at once", "A / q, in whole blocks", {"kv_bytes_available_per_gpu": "A", "reserved_bytes_per_sequence": "q"}, MEMORY,
    ),
    "kv_bytes_per_token": Quantity(
        "Bytes that the next token adds to one sequence, at the longest context", "model.kv_cache.kv_bytes_per_token",
        {"kv_bytes_per_element": "b", "max_model_len": "n", "layers": ""}, MEMORY,
    ),
    "state_bytes_per_sequence": Quantity("Recurrent and convolution states of a sequence", "memory.layer_groups.held_state_bytes", {"layers": ""}, MEMORY),
}  # fmt: skip
"""Path of a number of a plan -> what it is; `*` stands for any key, and a number of one of several groups has the path of the group before it."""
_KWH = "money.energy.kwh_per_million_tokens"
_COMMITTED = {
    "gpus": "g",
    "fixed_usd_per_gpu_hour": "f",
    "used_usd_per_gpu_hour": "v",
    "use_share": "u",
    "committed_hours": "h",
}
_CHEAPEST = "for whose share u of the time this is the cheapest way to pay"
_SIZED = {"request_rate": "R", "headroom_fraction": "h", "stated_spare_replicas": "s"}
_SIZED_WORDS = (
    "GPUs of the fewest replicas that meet all SLO targets at R / (1 - h), and of s spare replicas,"
)
_AS_PREDICTED = f"{_SIZED_WORDS} if every step takes as long as predicted"
_PAID = {"rented_usd": "m", "host_memory_usd": "k", "overhead_fraction": "f"}
_SIDES = {"low": "lowest", "high": "highest"}
_ENDS = {"": "Median", "lowest_": "Lowest", "highest_": "Highest"}
NEXT_TO_A_PLAN: Mapping[str, Quantity] = {
    "demand.peak_requests_per_s": Quantity("Requests a second at the peak of all traffic", "sum(r)", {"class_rate": "r"}, SIMULATION),
    "demand.mean_requests_per_s": Quantity("Requests a second, mean of all traffic", "sum(f r)", {"class_mean_fraction": "f", "class_rate": "r"}, SIMULATION),
    "total_cost.usd": Quantity("Cost of a month, or of one job, every line", "sum(c)", {"lines[].usd": "c"}, MONEY),
    "total_cost.lines[].usd": Quantity("Cost of a line", "money.ledger.Entry.usd", {"line_quantity": "q", "line_price": "u"}, MONEY),
    "total_cost.lines[].quantity": Quantity("Quantity of a line, in its unit", "q", {"line_quantity": "q"}, MONEY),
    "total_cost.lines[].usd_each": Quantity("Price of a unit of a line", "u", {"line_price": "u"}, MONEY),
    "prices_by_term[].gpus": Quantity("GPUs of the plan that are paid for", "g", {"paid_gpus": "g"}, MONEY),
    **{f"prices_by_term[].{side}usd_per_gpu_hour": Quantity(f"{words} public price of a GPU for the term", "p", {"term_price": "p"}, MONEY) for side, words in _ENDS.items()},
    **{
        f"prices_by_term[].{side}usd_per_{span}": Quantity(
            f"Cost of these GPUs for a {span} at the {words.lower()} public price", "p g h", {f"{side}usd_per_gpu_hour": "p", "gpus": "g", "term_hours": "h"}, MONEY
        )
        for side, words in _ENDS.items()
        for span in ("month", "job")
    },
    "energy.phases[].time_fraction": Quantity(
        "Share of the time in which a GPU prefills, decodes or waits", "of each hour of the day by its load, mean over the hours; spares idle", page=MONEY,
    ),
    "energy.phases[].watts_per_gpu": Quantity("Power of a GPU in the phase", "w", {"phase_watts": "w"}, MONEY),
    "energy.gpu_watts": Quantity("Mean power of all GPUs", "g sum(f w)", {"ordered_gpus": "g", "phases[].time_fraction": "f", "phases[].watts_per_gpu": "w"}, MONEY),
    "energy.server_watts": Quantity("Mean power of the GPUs with their servers", "w + h g", {"gpu_watts": "w", "host_watts": "h", "ordered_gpus": "g"}, MONEY),
    "energy.facility_watts": Quantity("Mean power with cooling and losses", "w e", {"server_watts": "w", "facility_ratio": "e"}, MONEY),
    "energy.design_watts": Quantity("Largest power of all servers at the wall", "sum(g W / d)", {"server_gpus": "g", "servers[].watts": "W", "servers[].gpus": "d"}, MONEY),
    "energy.kwh_per_million_output_tokens": Quantity("Energy of a million output tokens, with the energy of their prompts", _KWH, {"facility_watts": "w", "mean_output_tokens_per_s": "r"}, MONEY),
    "energy.kwh_per_million_tokens": Quantity("Energy of a million input and output tokens", _KWH, {"facility_watts": "w", "mean_total_tokens_per_s": "r"}, MONEY),
    "energy.joules_per_output_token": Quantity("Energy of an output token", "money.energy.Energy.joules_per_output_token", {"facility_watts": "w", "mean_output_tokens_per_s": "r"}, MONEY),
    **{
        f"energy.{name}_per_{span}": Quantity(f"{meaning} of a {span}", f"money.energy.Energy.{function}", {key.format(span): letter for key, letter in names.items()}, MONEY)
        for span in ("month", "job")
        for name, meaning, function, names in (
            ("kwh", "Energy", "kwh", {"facility_watts": "w", "powered_hours": "n"}),
            ("electricity_usd", "Cost of the electricity", "usd", {"kwh_per_{}": "E", "usd_per_kwh": "p"}),
            ("kg_co2", "Carbon dioxide of the electricity", "kg_co2", {"kwh_per_{}": "E", "kg_co2_per_kwh": "k"}),
        )
    },
    "energy.servers[].count": Quantity("Servers of one kind", "n", {"servers": "n"}, MONEY),
    "energy.servers[].gpus": Quantity("GPUs of one server", "d", {"gpus_per_server": "d"}, MONEY),
    "energy.servers[].watts": Quantity("Largest power of one server at the wall", "W", {"watts_per_server": "W"}, MONEY),
    "energy.servers[].per_rack": Quantity("Servers that the power of one rack feeds", "floor(L / W)", {"rack_limit_watts": "L", "watts_per_server": "W"}, MONEY),
    "energy.servers[].racks": Quantity("Racks that the servers fill", "ceil(n / m)", {"count": "n", "per_rack": "m"}, MONEY),
    "energy.racks": Quantity("Racks of all servers", "sum(r)", {"servers[].racks": "r"}, MONEY),
    "energy.rack_watts": Quantity(
        "Power of a full rack", "W G / d, or of one server that is too much for a rack", {"watts_per_server": "W", "gpus_per_server": "d", "gpus_per_rack": "G"}, MONEY,
    ),
    "energy.gpus_per_rack": Quantity("GPUs of a full rack", "d floor(L / W)", {"gpus_per_server": "d", "rack_limit_watts": "L", "watts_per_server": "W"}, MONEY),
    "commitments.rows[].replicas": Quantity("Replicas that are paid for by one commitment", f"replicas {_CHEAPEST}", {"use_share": "u"}, MONEY),
    "commitments.rows[].gpus": Quantity("GPUs that are paid for by one commitment", "n g", {"replicas": "n", "layout_gpus": "g"}, MONEY),
    "commitments.rows[].used_fraction": Quantity("Share of the time in which they are used", "mean of their u", {"use_share": "u"}, MONEY),
    "commitments.rows[].usd_per_gpu_hour": Quantity("Price of a GPU for an hour at which it is used", "p", {"commitment_price": "p"}, MONEY),
    **{f"commitments.rows[].usd_per_{span}": Quantity(f"Cost of a {span} by one commitment", "g (f + v u) h", _COMMITTED, MONEY) for span in ("month", "year")},
    **{f"commitments.rows[].usd_per_month_{side}": Quantity(f"Cost of a month at the {word} offer", "g (f + v u) h x", {**_COMMITTED, "offer_ratio": "x"}, MONEY) for side, word in _SIDES.items()},
    **{
        f"commitments.{key}": Quantity(f"Cost of a {what}", f"sum(c) + {people}", {f"rows[].{key}": "c", "people_of_owned": "p"}, MONEY)
        for key, what, people in (
            ("usd_per_month", "month by all commitments and of the people", "p"),
            ("usd_per_year", "year by all commitments and of the people", "12 p"),
            *((f"usd_per_month_{side}", f"month at the {word} offers", "p") for side, word in _SIDES.items()),
        )
    },
    "commitments.short_fraction": Quantity(
        "Share of the requests that arrive while replicas start", "requests that arrive while fewer replicas than they need are in service, over all requests", {"load_curve": ""}, MONEY,
    ),
    "commitments.people_usd_per_month": Quantity("Cost of the people who run owned GPUs", "p", {"people_of_owned": "p"}, MONEY),
    **{f"commitments.pure[].usd_per_{span}": Quantity(f"Cost of a {span} if one commitment pays for all replicas", "u h", {"pure_usd_per_hour": "u", "committed_hours": "h"}, MONEY) for span in ("month", "year")},
    **{
        f"commitments.pure[].usd_per_month_{side}": Quantity(f"Cost of a month by one commitment at the {word} offer", "u x h", {"pure_usd_per_hour": "u", "offer_ratio": "x", "committed_hours": "h"}, MONEY)
        for side, word in _SIDES.items()
    },
    "bill.classes[].requests": Quantity("Requests of a class in a month, or until the job is done", "mean rate times the time that is paid for", {"class_traffic": ""}, MONEY),
    **{
        f"bill.classes[].{name}": Quantity(f"{meaning} of a class", f"n times {each}", {"requests": "n", "class_traffic": ""}, MONEY)
        for name, meaning, each in (
            ("input_tokens", "Input tokens", "the mean prompt, of all sequences"),
            ("output_tokens", "Output tokens", "the mean output, of all sequences"),
            ("outside_usd", "Cost outside the GPUs", "what a request costs outside"),
        )
    },
    **{
        f"bill.classes[].{name}": Quantity(meaning, formula, {**cost, "requests": "n", **{f"class_{phase}_s": phase[0] for phase in phases}, "all_replica_s": "T"}, MONEY)
        for name, meaning, formula, cost, phases in (
            ("prefill_usd", "Cost of the time in which replicas read the prompts of a class", "W n p / T", {"busy_usd": "W"}, ("prefill",)),
            ("decode_usd", "Cost of the time in which replicas write the outputs of a class", "W n d / T", {"busy_usd": "W"}, ("decode",)),
            ("idle_usd", "Part of a class of what GPUs cost while they wait", "I n (p + d) / T", {"waiting_usd": "I"}, ("prefill", "decode")),
            ("gpu_time_fraction", "Share of the busy time of the GPUs that a class takes", "n (p + d) / T", {}, ("prefill", "decode")),
        )
    },
    "bill.classes[].usd": Quantity("Cost of a class without idle GPUs", "money.who_pays.Share.usd", {"prefill_usd": "p", "decode_usd": "d", "outside_usd": "x"}, MONEY),
    "bill.classes[].with_idle_usd": Quantity("Cost of a class with its part of the idle GPUs", "money.who_pays.Share.with_idle_usd", {"usd": "c", "idle_usd": "i"}, MONEY),
    "bill.classes[].usd_per_request": Quantity("Cost of a request", "money.who_pays.Share.usd_per_request", {"with_idle_usd": "a", "requests": "n"}, MONEY),
    "bill.classes[].usd_per_user": Quantity("Cost of a user", "money.who_pays.Share.usd_per_user", {"with_idle_usd": "a", "class_users": "m"}, MONEY),
    "bill.classes[].usd_per_thousand_requests": Quantity("Cost of a thousand requests", "1000 u", {"usd_per_request": "u"}, MONEY),
    "bill.classes[].usd_per_thousand_conversations": Quantity(
        "Cost of a thousand conversations", "money.who_pays.Share.usd_per_thousand_conversations", {"usd_per_request": "u", "conversation_requests": "k"}, MONEY,
    ),
    **{f"bill.usd_per_{span}": Quantity(f"Cost of a {span}, with people, overhead and what requests take outside the GPUs", "(m + k) (1 + f) + p + sum(y) + sum(x)", {**_PAID, "stated_people_usd": "p", "other_lines": "y", "classes_outside": "x"}, MONEY) for span in ("month", "job")},
    "bill.gpus": Quantity("GPUs of the plan", "g", {"ordered_gpus": "g"}, MONEY),
    "bill.idle_usd": Quantity("Cost of the machines for the time in which no request is at work", "(m + k) (1 + f) sum((1 - b) a)", {**_PAID, "group_busy": "b", "group_cost_fraction": "a"}, MONEY),
    **{
        f"bill.tenants[].{name}": Quantity(f"{meaning} of a tenant", "sum(x)", {"tenant_classes": "x"}, MONEY)
        for name, meaning in (
            ("requests", "Requests"), ("gpu_time_fraction", "Share of the busy time of the GPUs"), ("prefill_usd", "Cost of the prompts"), ("decode_usd", "Cost of the outputs"),
            ("outside_usd", "Cost outside the GPUs"), ("usd", "Cost"), ("idle_usd", "Part of what GPUs cost while they wait"), ("with_idle_usd", "Cost with idle GPUs"),
        )
    },
    "compare.own.usd_per_month": Quantity("Cost of a month of the self-hosted fleet, or of one job", "m + o + p + y + x", {"machines_usd_per_month": "m", "overhead_usd_per_month": "o", "people_usd_per_month": "p", "other_usd_per_month": "y", "outside_usd_per_month": "x"}, MONEY),
    "compare.even.price_ratio": Quantity("Prices of the cheapest API, relative to those of today, at which both cost the same", "(c - x) / (a - z)", {"own_usd": "c", "own_outside_usd": "x", "cheapest_api_usd": "a", "cheapest_api_outside_usd": "z"}, MONEY),
    "compare.even.machines_ratio": Quantity("Price of the machines, relative to that of today, at which both cost the same", "1 + (a - c) / m", {"cheapest_api_usd": "a", "own_usd": "c", "priced_machines_usd": "m"}, MONEY),
    "compare.own.gpus": Quantity("GPUs of the plan", "g", {"ordered_gpus": "g"}, MONEY),
    "compare.own.machines_usd_per_month": Quantity("Cost of the machines, with host memory for offloaded caches", "m + k", {"rented_usd": "m", "host_memory_usd": "k"}, MONEY),
    "compare.own.overhead_usd_per_month": Quantity("Overhead on the price of the machines", "m f", {"machines_usd_per_month": "m", "overhead_fraction": "f"}, MONEY),
    "compare.own.people_usd_per_month": Quantity("Cost of the people who run the fleet", "p", {"stated_people_usd": "p"}, MONEY),
    "compare.own.other_usd_per_month": Quantity("Cost of what else the service takes", "sum(y)", {"other_lines": "y"}, MONEY),
    **{f"compare.{whose}": Quantity("Cost of what requests take outside the GPUs", "sum(x)", {"classes_outside": "x"}, MONEY) for whose in ("own.outside_usd_per_month", "apis[].outside_usd")},
    "compare.own.request_rate": Quantity("Request rate at the peak", "sum(r n)", {"group_request_rate": "r", "group_busy_replicas": "n"}, MONEY),
    "compare.apis[].usd_per_month": Quantity(
        "Cost of a month at the API, or of one job", "money.hosted.HostedBill.usd",
        {"input_usd": "i", "output_usd": "o", "cache_write_usd": "w", "cache_read_usd": "k", "storage_usd": "s", "provisioned_usd": "t", "outside_usd": "x"}, MONEY,
    ),
    **{
        f"compare.apis[].{name}": Quantity(f"Price of {what}", f"sum over the classes, each by money.hosted.BilledClass.{function}", page=MONEY)
        for name, what, function in (
            ("input_usd", "prompt tokens that the cache neither reads nor writes", "input_usd"), ("output_usd", "output tokens", "output_usd"), ("cache_write_usd", "cache writes", "cache_write_usd"),
            ("cache_read_usd", "cache reads", "cache_read_usd"), ("storage_usd", "cached tokens by the hour", "cache_storage_usd"),
        )
    },
    "compare.apis[].provisioned_usd": Quantity("Price of throughput that is rented by the hour", "n p h", {"provisioned_units": "n", "provisioned_price": "p", "provisioned_hours": "h"}, MONEY),
    **{
        path: Quantity(
            "Peak rate above which the self-hosted fleet never costs more than the API", "least r from which on (1 + f) sum(u) + p + y <= c, n = ceil(r / l)",
            {"even_rate_limit": "l", "even_replicas": "n", "even_machines_usd": "u", "overhead_fraction": "f", "stated_people_usd": "p", "even_other_usd": "y", "even_api_usd": "c"}, MONEY,
        )
        for path in ("compare.breakeven_request_rate", "compare.apis[].breakeven_request_rate")
    },
    "bill.hours": Quantity("Hours that are paid for", "h", {"paid_hours": "h"}, MONEY),
    "bill.busy_fraction": Quantity("Share of what the replicas that are paid for can serve that requests take", "at most 1: T / H", {"all_replica_s": "T", "paid_replica_s": "H"}, MONEY),
    "certainty[].confidence": Quantity("Required confidence that the cheapest fleet is sized for", "c", {"sized_confidence": "c"}),
    "next_steps.surer[].confidence": Quantity("Required confidence that the layout of the plan is sized for", "c", {"sized_confidence": "c"}),
    "next_steps.surer[].gpus": Quantity("GPUs of the layout of the plan at that confidence", "as of a plan with that required confidence"),
    "next_steps.surer[].usd_per_month": Quantity("Cost of a month of them", "as of a plan with that required confidence"),
    "next_steps.surer[].more_gpus": Quantity("GPUs in addition to those of the plan", "n - g", {"gpus": "n", "ordered_gpus": "g"}),
    "next_steps.surer[].more_usd_per_month": Quantity("Cost of a month in addition to that of the plan", "m - c", {"usd_per_month": "m", "plan_usd_per_month": "c"}),
    "next_steps.as_predicted.gpus": Quantity("GPUs of the layout of the plan if every step takes as long as predicted", _AS_PREDICTED, _SIZED, SIMULATION, predicted=True),
    "next_steps.as_predicted.fewer_gpus": Quantity("GPUs of the plan beyond these", "g - n", {"ordered_gpus": "g", "gpus": "n"}),
    "next_steps.as_predicted.saved_usd_per_month": Quantity("Cost of a month of the plan beyond that of these GPUs", "c - m", {"plan_usd_per_month": "c", "usd_per_month": "m"}),
    "next_steps.unmeasured[].gpus": Quantity("GPUs of the best layout of a device that nobody measured, if every step takes as long as predicted", _AS_PREDICTED, _SIZED, SIMULATION, predicted=True),
    **{
        f"next_steps.{which}.usd_per_month": Quantity("Cost of a month of these GPUs", "money.price.usd_per_month", {"size_usd_per_hour": "h", "hours": "n"}, MONEY)
        for which in ("as_predicted", "unmeasured[]")
    },
    "tight_target.limit_s": Quantity("SLO target that costs the most throughput", "L", {"slo_limit": "L"}),
    "tight_target.value_s": Quantity("The same latency of requests that have a replica to themselves", "simulated at a load of one request", page=SIMULATION, predicted=True),
    "tight_target.used_fraction": Quantity(
        "Throughput of a replica within the target over its throughput without targets",
        "largest throughput of a replica that meets L over its largest throughput without targets", {"slo_limit": "L"}, SIMULATION, predicted=True,
    ),
    "tight_target.gpus_at[].limit_s": Quantity("Looser SLO target", "x", {"looser_limit": "x"}),
    "tight_target.gpus_at[].gpus": Quantity("GPUs of the layout of the plan at the looser target", f"{_SIZED_WORDS} if x is the target", {"limit_s": "x", **_SIZED}, SIMULATION, predicted=True),
    **{
        f"simulate.{name}": Quantity(meaning, formula, {"run": ""}, SIMULATION)
        for name, meaning, formula in (
            ("requests", "Requests that arrived in the measured time, drawn from the traffic at its peak or of the trace", "counted"),
            ("measured_from_s", "Time at which the warm-up ends", "end of the warm-up"),
            ("measured_until_s", "Time at which the measured time ends", "last arrival, or when the first user found no request left"),
            ("finished", "Requests that got all their tokens", "counted"),
            ("shed", "Requests that were turned away, or waited beyond their deadline", "counted"),
            ("unfinished", "Requests still under way at the end", "counted"),
            ("seconds", "Time of the run", "end of the last step"),
            ("preemptions", "Requests that had to give their cache back and start again", "counted"),
            ("batch_mean", "Mean number of requests in a replica", "mean over the busy time of the replicas"),
            ("busy_fraction", "Share of the time in which a replica works", "time in steps over time, mean of the replicas"),
            ("kv_occupancy.*", "Share of the KV cache that is in use: mean and 99th percentile", "over the steps of all replicas"),
            ("prefix_hit_fraction", "Share of the input tokens that the prefix cache has", "cached over all input tokens"),
            ("prefix_hit_fractions.*", "The same share by tier of the cache", "cached in the tier over all input tokens"),
            ("input_tokens_per_s", "Input tokens of finished requests in a second", "tokens over the measured time"),
            ("tokens_per_step", "Output tokens that a step gives a sequence", "mean over the steps that decode"),
            ("replicas", "Replicas that serve in the run", "replicas of the plan, or of --replicas"),
            ("gpus", "GPUs of these replicas", "replicas times the GPUs of one"),
            ("utilisation_fraction", "Offered rate over the largest that the replicas serve", "offered rate over that of a closed loop of the same requests"),
        )
    },
    **{
        f"simulate.{name}": Quantity(meaning, f"{letter} / (b - a)", {argument: letter, "measured_until_s": "b", "measured_from_s": "a"}, SIMULATION)
        for name, meaning, argument, letter in (
            ("requests_per_s", "Requests finished in a second", "finished_requests", "f"),
            ("goodput_requests_per_s", "Requests finished in a second within all SLO targets", "good_requests", "g"),
            ("output_tokens_per_s", "Output tokens of finished requests in a second", "finished_output_tokens", "o"),
        )
    },
    "simulate.slo_met_fraction": Quantity("Share of the requests within all SLO targets", "g / n", {"good_requests": "g", "requests": "n"}, SIMULATION),
    **{
        f"simulate.{latency}.{statistic}": Quantity(f"{name}: {words}", formula, arguments, SIMULATION)
        for latency, name in (("ttft_s", "Time to first token"), ("tpot_s", "Time per output token after the first"), ("e2e_s", "Time until the last token"), ("queue_s", "Time until a step works on a request"))
        for statistic, words, formula, arguments in (
            ("mean", "mean", "S / N", {"run_sum": "S", "run_requests": "N"}),
            ("*", "percentiles, such as p95", "a + (q (N - 1) - k) (b - a)", {"quantile_fraction": "q", "run_requests": "N", "rank": "k", "faster_request": "a", "slower_request": "b"}),
        )
    },
    "simulate.itl_s.*": Quantity("Time between two tokens: mean and percentiles", "mean or percentile of the gaps between tokens", {"gaps": ""}, SIMULATION),
    "growth.months[].month": Quantity("Number of the month", "1 is today", page=MONEY),
    "growth.months[].request_rate": Quantity("Request rate at the peak of the month", "r x", {"peak_today": "r", "traffic_ratio": "x"}, MONEY),
    "growth.months[].replicas": Quantity("Replicas of the month, spares included", "as many as the rule that sized the plan takes at the rate of the month", page=MONEY),
    "growth.months[].pool_replicas[]": Quantity("Replicas of one group of the plan", "as many as the rule that sized the group takes at the rate of the month", page=MONEY),
    "growth.months[].gpus": Quantity("GPUs of the month, spares included", "n g", {"replicas": "n", "layout_gpus": "g"}, MONEY),
    "growth.months[].added_gpus": Quantity("GPUs to add before the month", "g - b", {"gpus": "g", "before_gpus": "b"}, MONEY),
    "growth.months[].usd_per_month": Quantity("Cost of the month, all replicas at all hours", "h m k", {"month_usd_per_hour": "h", "hours": "m", "gpu_price_ratio": "k"}, MONEY),
    "growth.months[].gpu_price_ratio": Quantity("Prices of GPUs over those of the first month", "(1 - d)^((m - 1) / 12)", {"price_decline": "d", "month": "m"}, MONEY),
    "growth.months[].mix_usd_per_month": Quantity(
        "Cost of the month by the cheapest mix of commitments",
        "cheapest mix of commitments for the load curve with its peak at r: explain commitments.usd_per_month has the mix of today; rents times k, and terms times the k of the month in which they begin",
        {"request_rate": "r", "gpu_price_ratio": "k"}, MONEY,
    ),
    "growth.outgrown_in_month": Quantity("First month for which the plan is too small", "first month whose replicas m, of any kind, are more than those n of today's plan", page=MONEY),
    "growth.usd_over_horizon": Quantity("Cost of all months, all replicas at all hours", "sum(c)", {"months[].usd_per_month": "c"}, MONEY),
    "growth.mix_usd_over_horizon": Quantity("Cost of all months by the cheapest mixes", "sum(c)", {"months[].mix_usd_per_month": "c"}, MONEY),
}  # fmt: skip
"""Path of a number that `fleet` prints next to a plan -> what it is; `[]` stands for any position, and an argument without a path is a number of the same row
or of the same part of the answer."""
_BY_TIME = "of the cost of each group, the share of its time that the class takes, n (p + d); GPUs weigh the time of all"
OF_SEVERAL_GROUPS: Mapping[str, Quantity] = {
    name: Quantity({**PLAN, **NEXT_TO_A_PLAN}[name].meaning, formula, arguments, page)
    for name, formula, arguments, page in (
        ("gpus", "sum(x)", {"groups[].gpus": "x"}, METHODOLOGY),
        ("replicas", "sum(x)", {"groups[].replicas": "x"}, METHODOLOGY),
        ("spare_replicas", "sum(x)", {"groups[].spare_replicas": "x"}, METHODOLOGY),
        ("usd_per_hour", "sum(x)", {"groups[].usd_per_hour": "x"}, MONEY),
        ("watts", "sum(w g)", {"groups[].gpus": "g", "group_tdp_w": "w"}, MONEY),
        ("energy_usd_per_hour", "sum(e g)", {"group_energy_usd_per_gpu_hour": "e", "group_powered_gpus": "g"}, MONEY),
        ("energy.server_watts", "w, and of each device its share of its server", {"gpu_watts": "w"}, MONEY),
        ("growth.months[].replicas", "of all groups", {}, MONEY),
        ("growth.months[].gpus", "of all groups, replicas times their GPUs", {}, MONEY),
        ("growth.months[].usd_per_month", "730 hours of the n replicas of all groups", {"replicas": "n"}, MONEY),
        *((f"bill.classes[].{name}", _BY_TIME, {"requests": "n", "class_prefill_s": "p", "class_decode_s": "d"}, MONEY) for name in ("prefill_usd", "decode_usd", "idle_usd", "gpu_time_fraction")),
        *((name, "10^6 h / (3600 r)", {"usd_per_hour": "h", "mean_total_tokens_per_s": "r"}, MONEY) for name in PLAN if name.startswith("usd_per_million")),
    )
}  # fmt: skip
"""Path of a number of a plan of several groups which its groups have a part in -> what it is; `groups[]` stands for each of them."""
UNEXPLAINED: Mapping[str, str] = {
    **dict.fromkeys(("evaluated", "rejected"), "counts what the search tried; capplan fleet --full says why each was rejected"),
    **dict.fromkeys(("recommended", "choices"), "counts plans from 0 to that one; explain PLAN plans has the numbers of each"),
    "uneconomical": "of a plan that the search left out; capplan fleet --hardware plans that device, and explain takes its plan",
    **dict.fromkeys(
        ("over_budget", "over_budget_usd_per_month", "missed_usd_per_month"), "of a plan above the budget; capplan fleet without the budget plans it, and explain takes its plan"
    ),
    **dict.fromkeys(("sharing", "models"), "of several models; --set sharing.part plans one of them, and explain takes its plan"),
    **dict.fromkeys(("cascade", "fleets", "waits"), "of several models; --set cascade.part plans one of them, and explain takes its plan"),
    **dict.fromkeys(("order.machines", "order.placement"), "a choice of the search: the cheapest machines that hold the replicas; explain order.usd_per_hour has their prices"),
    "waterfall": "GPUs and dollars of the plan, cause by cause; docs/methodology.md has the formulas, and explain PLAN gpus and usd_per_month the last step",
    "disaggregated": "of plans that the search compared with; explain PLAN plans lists those that it kept",
    "relaxations": "a choice of the search: the least limit at which a layout serves",
    "narrower_weights": "of a plan with other weights; capplan fleet --set weight_dtype=fp8 plans it, and explain takes its plan",
    "carried": "of a plan for a part of the traffic; capplan fleet plans it with that traffic, and explain takes its plan",
    "mix": "a choice of the search: how many requests each group gets",
    "owned": "counts the machines of fleet.own in the order; explain PLAN order.gpus_owned has their GPUs",
    "commitments.plans": "of the mixes of other plans; explain PLAN commitments has the mix of this one",
    "currency": "the dollars of the plan at the rate that the scenario states",
    **dict.fromkeys(("bill.charges", "bill.rates"), "what pays for the machines, and how well it fits; docs/money.md says how they follow from the mix"),
    **dict.fromkeys(
        ("bill.services", "bill.mix", "bill.separate_usd_per_month", "bill.separate_rates", "bill.budget_usd_per_month", "bill.over_budget_usd_per_month"),
        "of several plans that share commitments; docs/how-to/plan-commitments.md says how they follow from the mix of each",
    ),
    "bill.prices_by_term": "those of capplan fleet; explain PLAN prices_by_term has each",
    "cash": "payments of the commitments by month; docs/money.md says how they follow from the mix",
    "outside[]": "as the scenario states it for each class; explain PLAN outside.usd_per_month has what follows from it",
    "over_time": "a search for the replicas of each hour of the load curve",
    "simulate.timeline": "counted in a slice of the run",
    "simulate.transfer": "of the link between the pools in the run; explain PLAN transfer has that of the plan",
    "simulate.operation": "counted behind the router, over the run and for each replica",
    **dict.fromkeys(("simulate.seen_ttft_s", "simulate.seen_e2e_s"), "the latency of the engine, which explain takes without seen_, and what the class waits outside: wait_s"),
    "simulate.wait_s": "as the scenario states it for each class: traffic[].outside",
    "simulate.seed": "the number that the draws of the run begin with: --seed",
    "levers": "of other searches; capplan fleet --set with the change of a lever plans it, and explain takes its plan",
    "what-if": "of other searches; capplan fleet --set with the values of a point finds its fleet, and explain takes its plan",
    "compare.months": "both sides in a month to come; explain PLAN growth has the machines, and docs/money.md the rest",
    "compare.own.kg_co2": "of the energy of the plan; explain PLAN energy.kg_co2_per_month has it",
    "compare.offers_compared": "the number of offers in apis",
    "check": "a number of the plan next to its limit; explain takes it by its own name",
    "estimate": "of no plan; docs/methodology.md has its formulas",
}  # fmt: skip
"""First part of the paths of an answer that no explanation is kept of -> why, and what says more."""
_OF_THE_PLAN = re.compile(r"chosen\.|(?:bill|compare\.own)\.(?=order\.)")


def plan_path(path: str) -> str:
    """Return the path of a number of the recommended plan where an answer repeats it.

    Examples
    --------
    >>> plan_path("chosen.ttft_s.p95"), plan_path("bill.order.gpus"), plan_path("plans[1].gpus")
    ('ttft_s.p95', 'order.gpus', 'plans[1].gpus')
    """
    return _OF_THE_PLAN.sub("", path, count=1) if _OF_THE_PLAN.match(path) else path


def unexplained(path: str) -> str:
    """Return why a number of an answer has no explanation; empty for others.

    Examples
    --------
    >>> unexplained("plans[1].order.machines[0].count").partition(":")[0], unexplained("usd_per_month")
    ('a choice of the search', '')
    """
    place = re.sub(r"\[\d+\]", "[]", _OF_A_CLASS.sub("simulate.", _OF_A_PLAN.sub("", path, count=1)))
    return next(
        (why for start, why in UNEXPLAINED.items() if f"{place}.".startswith((f"{start}.", f"{start}["))), ""
    )


_OF_A_PLAN = re.compile(r"^(?:plans\[\d+\]|certainty\[\d+\])\.")
_OF_A_CLASS = re.compile(r"^simulate\.classes\.[^.]+\.")
_OF_A_GROUP = re.compile(r"groups\[\d+\]\.")


def quantity_of(path: str, *, of_groups: bool = False) -> Quantity | None:
    """Return what a number of a plan, perhaps of several groups, or next to it is, by its path; None for a path that no plan has.

    Examples
    --------
    >>> quantity_of("usd_per_month").function, quantity_of("groups[1].gpus").arguments["replicas"]
    ('money.price.usd_per_month', 'n')
    >>> quantity_of("energy.servers[2].racks").formula
    'ceil(n / m)'
    >>> quantity_of("target_probabilities.ttft_p95").page, quantity_of("hardware")
    ('docs/accuracy.md', None)
    """
    path = plan_path(path)
    place = re.sub(r"\[\d+\]", "[]", path)
    if of_groups and place in OF_SEVERAL_GROUPS:
        return OF_SEVERAL_GROUPS[place]
    found = NEXT_TO_A_PLAN.get(place) or NEXT_TO_A_PLAN.get(f"{place.rpartition('.')[0]}.*")
    if found is not None:
        return found
    name = _OF_A_GROUP.sub("", _OF_A_PLAN.sub("", path), count=1).partition("[")[0]
    head, _, _ = name.rpartition(".")
    return PLAN.get(name) or PLAN.get(f"{head}.*")
