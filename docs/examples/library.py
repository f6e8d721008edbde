"""The example of the README, held by mypy --strict."""

import capplan as cp

fleet = cp.plan_fleet("small-team", offline=True)
best = fleet.chosen
print(best.gpus, best.hardware, best.usd_per_month)
print(fleet.to_pandas()[["hardware", "gpus", "usd_per_month", "slo_met_probability"]])
