"""What tokens of a plan cost, as the Prometheus metrics of OpenCost and llm-d: the names, labels and definitions on which both agreed.

https://llm-d.ai/docs/dev/operations/observability/inference-cost
https://github.com/opencost/opencost/blob/develop/docs/inference-cost-tracking.md
"""

from collections.abc import Iterator

from capplan.questions.money.who_pays import AskedBill
from capplan.scenario.scenario_file import Scenario

_HELP = {
    "llm_total_hourly_cost": "Infrastructure cost of the model in an hour, in dollars, planned",
    "llm_cost_per_million_tokens": "Infrastructure cost of a million tokens, in dollars, planned",
    "llm_cache_savings_fraction": "Share of the prompt tokens that the KV cache serves, planned",
}


def cost_metrics(asked: AskedBill, scenario: Scenario) -> str:
    """Return the metrics of a bill as Prometheus text; a label says that they are planned.

        t = c / h,   b = 10^6 c / (i + o),   p = 10^6 c s / i,   g = 10^6 c (1 - s) / o

    c are the machines in h hours, with idle GPUs (allocation) or for their busy share only (usage); i and o are input and output tokens, and s
    is the share of prefill in the busy time.

    Parameters
    ----------
    asked : the bill
    scenario : its name stands for the namespace, its model is served
    """
    shares = asked.bill.shares
    inputs, outputs = (
        sum(getattr(share.use, f"{kind}_tokens") for share in shares) for kind in ("input", "output")
    )
    prefill, decode = (
        sum(getattr(share, f"{kind}_usd") for share in shares) for kind in ("prefill", "decode")
    )
    part = prefill / (prefill + decode) if prefill + decode else 0.0  # machines that are there cost nothing
    same = {
        "model_name": scenario.model, "model_version": "", "namespace": scenario.name, "source": "capplan",
    }  # fmt: skip
    hits = asked.plan.prefix_hit_fraction or 0.0
    samples: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _HELP}
    for basis, usd in (
        ("allocation", asked.machines_usd),
        ("usage", asked.machines_usd * asked.bill.busy_fraction),
    ):
        of_basis = same | {"cost_basis": basis}
        samples["llm_total_hourly_cost"].append((of_basis, usd / asked.hours))
        for phase, cost, tokens in (
            ("", usd, inputs + outputs),
            ("prompt", usd * part, inputs),
            ("generation", usd * (1.0 - part), outputs),
        ):
            if tokens:
                split = {"phase": phase, "allocation_method": "compute_time" if phase else ""}
                samples["llm_cost_per_million_tokens"].append((of_basis | split, 1e6 * cost / tokens))
    samples["llm_cache_savings_fraction"].append((same, hits))
    return "".join(_lines(samples))


def _lines(samples: dict[str, list[tuple[dict[str, str], float]]]) -> Iterator[str]:
    """Yield the lines of an exposition."""
    for name, rows in samples.items():
        yield f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n"
        for labels, value in rows:
            said = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{name}{{{said}}} {value!r}\n"


def _escaped(text: str) -> str:
    r"""Return the text of a label.

    Examples
    --------
    >>> _escaped('a "b"')
    'a \\"b\\"'
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
