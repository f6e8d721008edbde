"""How much slower than predicted the steps of a real replica may be."""

from dataclasses import dataclass
from math import erf, exp, log, sqrt

from capplan.accuracy.intervals import LEVEL, Intervals, interval_of, regime_keys, widest
from capplan.workload.length import standard_normal_quantile


@dataclass(frozen=True, slots=True)
class Slowness:
    """Measured over predicted time of a step, lognormal."""

    median: float
    spread: float

    def quantile(self, confidence: float) -> float:
        return float(self.median * exp(float(standard_normal_quantile(confidence)) * self.spread))

    def probability(self, slowness: float) -> float:
        return 0.5 * (1.0 + erf(log(slowness / self.median) / self.spread / sqrt(2.0)))


def slowness_of(intervals: Intervals, network: str, label: str) -> Slowness:
    interval = interval_of(intervals, regime_keys("tpot", "closed", network, label)) or widest(intervals)
    z = float(standard_normal_quantile(0.5 + LEVEL / 2))
    return Slowness(1.0, log(interval.high_ratio / interval.low_ratio) / 2 / z)
