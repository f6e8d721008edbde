"""What a service costs in all, line by line: its machines, the people who run it, and what it takes outside the GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.fleet.money_terms import OtherTerms


@dataclass(frozen=True, slots=True)
class Sold:
    """What a line of machines is, as it is sold."""

    provider: str
    """Empty: whoever makes the offers of a commitment."""
    commitment: str
    """Empty: by the hour, as prices.commitment says."""
    sku: str
    region: str | None
    gpus: int = 0
    """GPUs of all machines of the line."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of the total: a quantity at a price."""

    what: str
    quantity: float
    unit: str
    """Unit of the quantity."""
    usd_each: float
    basis: str
    """Where the price comes from: an offer, a key of the scenario, or "assumed"."""
    grows_with: str = "nothing"
    """What it is proportional to: traffic, machines, or nothing."""
    sold: Sold | None = None
    """Seller of the machines; None for other lines."""

    @property
    def usd(self) -> float:
        """Return the cost of the line.

            c = q u

        Returns
        -------
        [$]
            c: the quantity q at the price u, of a month or of one job
        """
        return self.quantity * self.usd_each


def total_usd(lines: Sequence[CostLine]) -> float:
    """Return the sum of the lines [$]."""
    return sum(line.usd for line in lines)


def other_lines(
    terms: OtherTerms, machines_usd: float, output_tokens: float, weight_bytes: float, months: float
) -> tuple[CostLine, ...]:
    """Return the costs of a service other than its GPUs and the people who run it, the lines without a price left out.

        egress q = 10^-9 o b,   weights q = 10^-9 w t,   others q = n t

    Parameters
    ----------
    terms : prices; bytes b of an output token as it is streamed
    machines_usd : [$]
        what the machines cost, of which the provider's support plan is a share
    output_tokens : [tokens]
        o, of all requests
    weight_bytes : [B]
        w, of the checkpoint, kept once
    months : [-]
        t, that they are paid for; less than one for a job

    Returns
    -------
    lines, of the same time as machines_usd
    """

    def basis(key: str) -> str:
        return "assumed" if key in terms.assumed else f"scenario: prices.other.{key}"

    lines = (
        CostLine(
            "egress of streamed output", 1e-9 * output_tokens * terms.bytes_per_token, "GB", terms.egress_usd_per_gb,
            basis("egress_per_gb"), "traffic",
        ),
        CostLine("load balancers", months, "months", terms.load_balancers_usd_per_month, basis("load_balancers")),
        CostLine("storage of weights", 1e-9 * weight_bytes * months, "GB months", terms.weights_usd_per_gb_month, basis("weights_per_gb")),
        CostLine("CPU nodes", terms.cpu_nodes * months, "node months", terms.cpu_node_usd_per_month, basis("cpu_node")),
        CostLine("support plan", machines_usd, "$ of machines", terms.support_fraction, basis("support"), "machines"),
    )  # fmt: skip
    return tuple(line for line in lines if line.usd)
