"""docs/models.md and docs/models.csv: every model type of the installed transformers, exact, noted or refused with the reason."""

import collections
from collections.abc import Iterable

import transformers

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.registry import families
from docs.generators.page_tables import Table
from tests.differential.verdict import Compared

_PAGE = """# Every model type

Find the `model_type` of your config.json on this page: capplan reads the types of the first list, and rejects the others with a reason. Nothing is guessed.

{counts} [By type](models.csv).

- **exact**: parameters, and cache elements where the model was run, equal the reference, to the last one.
- **noted**: the result says which key was not read or which tower is not counted.
- **refused**: one line that says why.
- **not built**: transformers does not build or run the file itself.
- **wrong**: another figure without a remark. No type is wrong today: `make oracle` fails if one is.

## Types that are read

{read}.

Noted:

{remarks}

Also read, without a class of this transformers to compare with: {others}.

## Types that are rejected

{rejected}

## How it was checked

`make oracle` writes this page. It builds the model of every file with transformers {version} on torch's meta device and compares the number of parameters. It runs the small ones on the CPU and
compares what a prefill leaves in the cache at {contexts} tokens. Of each type it reads the default config, a small one, one without a key, ones with other values and heads, and the forms in which
transformers 4, transformers 5 and people save it.

Torch counts the same FLOP as our operators, within 1%, in the matrix products of {products} types. Not compared are scores and values of attention, except those of encoders, scans, convolutions and
elementwise work, and {otherwise}.

The cache is not compared for {elsewhere}.
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
    counts = ", ".join(f"{total[verdict]:,} {verdict}" for verdict in (*_COUNTED, "wrong"))
    read = []
    remarks: dict[str, list[str]] = {}
    rejected: dict[str, list[str]] = {}
    for kind, listed in results.items():
        found = collections.Counter(one.verdict for one in listed)
        remark = _remark(kind, listed)
        if set(found) <= {"refused"}:
            rejected.setdefault(remark, []).append(kind)
            continue
        read.append(kind)
        if remark:
            remarks.setdefault(remark, []).append(kind)
    return _PAGE.format(
        counts=f"{sum(total.values()):,} files of {len(results)} model types: {counts}.",
        read=", ".join(f"`{kind}`" for kind in read),
        remarks=_listed(remarks),
        others=", ".join(f"`{kind}`" for kind in sorted(set(families()) - set(results))),
        rejected=_listed(rejected),
        version=transformers.__version__,
        contexts=", ".join(map(str, contexts)),
        products=products,
        otherwise=_reasons(otherwise),
        elsewhere=_reasons(elsewhere),
    )


_COUNTED = ("exact", "noted", "refused", "not built")


def table(results: dict[str, list[Compared]]) -> Table:
    """Return how many files of each type have each verdict, of types that are read."""
    rows = []
    for kind, listed in results.items():
        found = collections.Counter(one.verdict for one in listed)
        if not set(found) <= {"refused"}:
            rows.append([kind, *(str(found[verdict]) for verdict in _COUNTED)])
    return Table(["model_type", *(f"files {verdict}" for verdict in _COUNTED)], rows)


def _listed(kinds: dict[str, list[str]]) -> str:
    """Return a line for each remark, with the types that have it."""
    return "\n".join(f"- **{why}**: {', '.join(f'`{kind}`' for kind in of)}" for why, of in kinds.items())


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
