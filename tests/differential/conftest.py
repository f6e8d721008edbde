"""Nothing here is collected: it is run by `make oracle`, and needs transformers; its stored sample is judged by tests/oracles."""

collect_ignore_glob = ["*.py"]
