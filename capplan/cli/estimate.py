"""`capplan estimate`: latency and throughput of one replica."""

from capplan.cli import options as o
from capplan.cli.groups import grouped


@grouped
def command(
    *,
    model: o.Model,
    hardware: o.Hardware,
    load: o.Load,
    serving: o.Serving,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Estimate latency and throughput of one replica at a concurrency or at a request rate."""
    from capplan.accuracy.bounded import bounded_estimate
    from capplan.questions.replica import asked_replica
    from capplan.readers.catalogue.intervals import shipped_intervals
    from capplan.replica.replica import replica_of
    from capplan.report.answers.estimate import estimate_answer
    from capplan.report.charts.picture import chart_picture
    from capplan.report.charts.roofline import compute_dtype_of, roofline_chart
    from capplan.report.show import show, shown_anyway

    asked = asked_replica(model, hardware, serving)
    replica = replica_of(asked.spec)
    bounded = bounded_estimate(replica, load, shipped_intervals())
    answer = estimate_answer(replica, load, bounded, asked.assumptions, asked.warnings)
    if picture:
        compute, operators = compute_dtype_of(asked.spec), bounded.estimate.breakdown
        with shown_anyway(answer, to):
            chart_picture(picture, [roofline_chart(asked.spec.device, compute, operators)])
    return show(answer, to)
