"""Gaps between tokens that are longer than a step: of sequences that waited while prompts had the engine."""

from capplan.serving.gauges import WeightedHistogram


class TokenGaps:
    """Since when groups of decoding sequences, in the order in which they joined, wait for their next token."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self.groups: list[tuple[int, float]] = []

    def wait(self, sequences: int, since_s: float) -> None:
        """Let the sequences that joined last wait."""
        if sequences:
            self.groups.append((sequences, since_s))

    def since_s(self, place: int, now_s: float) -> float:
        """Return when the sequence at this place in the order of joining got its last token.

        Examples
        --------
        >>> gaps = TokenGaps()
        >>> gaps.wait(2, 1.0)
        >>> gaps.wait(1, 3.0)
        >>> gaps.since_s(1, 4.0), gaps.since_s(2, 4.0)
        (1.0, 3.0)
        """
        for count, since in self.groups:
            if place < count:
                return since
            place -= count
        return now_s

    def forget(self, place: int) -> None:
        """Take the sequence at this place in the order of joining out."""
        for group, (count, since) in enumerate(self.groups):
            if place < count:
                self.groups[group : group + 1] = [(count - 1, since)] if count > 1 else []
                return
            place -= count

    def end(self, now_s: float, into: WeightedHistogram) -> None:
        """Count every gap, for everybody has a token now."""
        for count, since in self.groups:
            into.add(now_s - since, count)
        self.groups.clear()
