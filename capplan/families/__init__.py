"""The readers of config.json, one file per kindred group of `model_type`s.

To add a family, add a file here with a table `FAMILIES: dict[str, Family]` from `model_type` to a
function that takes a `Config` and a name and returns a `Network`. Nothing else has to change.
A table `REFUSED: dict[str, str]` gives a reason for types that are known but not modelled.
"""
