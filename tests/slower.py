"""A replica whose steps take longer by a factor, the time of its front end with them."""

from dataclasses import replace

from capplan.fleet.search.trial import Trial

TIMES = (
    "decode_s",
    "head_s",
    "decode_attention_s",
    "mixed_s",
    "launch_s",
    "prefill_attention_s",
    "request_s",
    "prompt_token_s",
)


def made_slower(trial: Trial, factor: float) -> Trial:
    """Return a trial whose table of step times is made slower itself."""
    table = trial.replica.table
    longer = {name: factor * getattr(table, name) for name in TIMES}
    trial._engines[trial.demand.load_s] = replace(trial.replica.engine, table=replace(table, **longer))
    return trial
