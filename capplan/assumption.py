"""A default that nobody confirmed, with the flag or key that replaces it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Label: TypeAlias = Literal["measured", "assumed"]
"""How far a figure can be trusted: fitted on this device, or taken over from something else."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """One line of the footer of every result."""

    what: str
    """What was assumed, with the value: 'KV cache in bf16, the activation dtype'."""
    replace: str
    """The flag, scenario key or command that replaces it, for people: '--kv-dtype'."""
    key: str = ""
    """The scenario key of the setting: 'kv_dtype'. Code asks for this and never reads the two sentences."""

    def of_scenario(self) -> "Assumption":
        """Return the assumption for somebody who writes a scenario: its key in place of the flag.

        Examples
        --------
        >>> Assumption("KV cache in bf16", "--kv-dtype", "kv_dtype").of_scenario().replace
        'kv_dtype'
        """
        return Assumption(self.what, self.key or self.replace, self.key)


TO_DO = {
    "to measure": ("--calibration", "calibration", "capplan calibrate"),
    "to state of the traffic": ("traffic",),
    "to state of prices": ("prices", "fleet.providers", "hosted"),
    "to choose": ("",),
}
"""What a person does about an assumption -> how that begins which replaces it; the first one holds."""


def by_what_to_do(assumptions: Iterable[Assumption]) -> dict[str, list[Assumption]]:
    """Return the assumptions that there are under each of `TO_DO`, in their order."""
    found: dict[str, list[Assumption]] = {do: [] for do in TO_DO}
    for item in assumptions:
        found[next(do for do, begins in TO_DO.items() if item.replace.startswith(begins))].append(item)
    return {do: items for do, items in found.items() if items}
