"""Assumptions behind weight formats of few bits, and the bits of codebook formats."""

import re

from capplan.assumption import Assumption

SCALES_OF_INT2 = Assumption(
    "int2 means one fp16 scale per 128 weights and no zero points, 2.125 bits per weight",
    "--weight-dtype w2a16-g64, aqlm-1x16-g8, quip-2, ...",
    "weight_dtype",
)
"""Assumption behind the bare name int2."""

CODEBOOKS = Assumption(
    "AQLM and QuIP# weights take the bits that their name states; codebooks and scales, which are small, are not counted",
    "a format with group scales, such as w2a16-g64",
    "weight_dtype",
)
"""Assumption behind formats with codebooks."""

MIXTURE = Assumption(
    "{dtype} is what llama-quantize writes without an importance matrix: embedding and LM head are quantised too, norms, biases "
    "and routers are in fp32",
    "the GGUF file itself as MODEL",
    "weight_dtype",
)
"""Assumption behind the mixtures of GGUF files."""

_CODES = re.compile(r"aqlm-(?P<books>[1-8])x(?P<bits>\d{1,2})-g(?P<group>\d{1,4})|quip-(?P<whole>[234])")


def coded_bits(name: str) -> float | None:
    """Return the bits of a weight that is an entry of codebooks, as its name states them, or None.

        AQLM: bits = codebooks x bits of a code / weights of a group; QuIP#: 2, 3 or 4 bits

    Parameters
    ----------
    name : `aqlm-2x8-g8` (two codebooks of 8-bit codes over 8 weights), `quip-2`

    Returns
    -------
    [bit]
        without codebooks and scales; None for any other name

    Examples
    --------
    >>> coded_bits("aqlm-1x16-g8"), coded_bits("quip-2"), coded_bits("int4")
    (2.0, 2.0, None)

    References
    ----------
    Egiazarian et al. 2024, "AQLM", arXiv:2401.06118, section 3; Tseng et al. 2024, "QuIP#", arXiv:2402.04396, section 4.
    """
    match = _CODES.fullmatch(name)
    if match is None:
        return None
    if match["whole"]:
        return float(match["whole"])
    books, bits, group = int(match["books"]), int(match["bits"]), int(match["group"])
    return books * bits / group if 1 <= bits <= 16 and 1 <= group <= 1024 else None
