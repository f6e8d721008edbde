"""The readers of config.json, one file per group of related `model_type`s.

To add a family, write a function that takes a `Config` and a name and returns a `Network`, and list it by `model_type` in
`readers.json`. `registry.py` has the reasons for types that are known but not modelled.
"""
