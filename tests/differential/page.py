"""docs/models.md: every model type of the installed transformers, exact, noted or refused with the reason."""

import collections
from collections.abc import Iterable

import transformers

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.registry import families
from tests.differential.verdict import Compared

_HEAD = """# Every model type

Which `config.json` files are read, and how that was checked. `make oracle` writes this page: it builds the model of every file with
transformers {version} on torch's meta device and compares the number of parameters; it runs the small ones on the CPU and compares what a
prefill leaves in the cache at {contexts} tokens, below, at and above the windows of those models. For each model type it reads the
default config, a small one, the same without one of its keys, with one to three other values, with other heads, as transformers 4 and as
transformers 5 saves it, and as people write it: without a release and without a word on embedding and head.

- **exact**: parameters, and cache elements where the model was run, equal the reference, to the last one.
- **noted**: the result says which key was not read or which tower is not counted.
- **refused**: one line that says why; nothing is guessed.
- **not built**: transformers does not build or run the file itself.
- **wrong**: another figure without a remark. No type is wrong today: `make oracle` fails if one is.

What is not compared: the cache of {elsewhere}.

The matrix products of a prefill: torch's count of FLOP agrees with the demand of our operators within 1 % for {products} model types. Not
compared are scores and values of attention (but those of encoders are), scans, convolutions and elementwise work, and {otherwise}.

{counts}

"""


def page(
    results: dict[str, list[Compared]],
    contexts: Iterable[int],
    elsewhere: dict[str, str],
    products: int,
    otherwise: dict[str, str],
) -> str:
    """Return the page for the verdicts of every model type."""
    total = collections.Counter(one.verdict for listed in results.values() for one in listed)
    counts = ", ".join(
        f"{total[verdict]:,} {verdict}" for verdict in ("exact", "noted", "refused", "not built", "wrong")
    )
    lines = [
        _HEAD.format(
            version=transformers.__version__,
            contexts=", ".join(map(str, contexts)),
            elsewhere=_reasons(elsewhere),
            products=products,
            otherwise=_reasons(otherwise),
            counts=f"{sum(total.values()):,} files of {len(results)} model types: {counts}.",
        ),
        "| model type | exact | noted | refused | not built | remark |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for kind, listed in results.items():
        found = collections.Counter(one.verdict for one in listed)
        figures = " | ".join(str(found[v]) for v in ("exact", "noted", "refused", "not built"))
        lines.append(f"| `{kind}` | {figures} | {_remark(kind, listed)} |")
    others = ", ".join(f"`{kind}`" for kind in sorted(set(families()) - set(results)))
    lines += ["", f"Read too, without a class of this transformers to compare with: {others}.", ""]
    return "\n".join(lines)


def _reasons(kinds: dict[str, str]) -> str:
    return "; ".join(f"`{kind}` ({why})" for kind, why in kinds.items())


def _remark(kind: str, listed: list[Compared]) -> str:
    if kind not in families():
        return _refusal(kind)
    noted = [one for one in listed if one.verdict == "noted"]
    if noted and not any(one.verdict == "exact" for one in listed):
        return noted[0].why.split(";")[0].replace("|", "/")
    base = [one for one in listed if not one.file.change]
    if base and all(one.verdict == "refused" for one in base):
        return base[0].why.removeprefix("config.json: ").replace("|", "/")
    return ""


def _refusal(kind: str) -> str:
    try:
        read_network({"model_type": kind}, kind)
    except InputError as error:
        first = str(error).splitlines()[0]
        return (
            first.removeprefix("config.json: model_type: ")
            .removeprefix(f"{kind!r} is ")
            .split(": did you mean")[0]
        )
    return ""
