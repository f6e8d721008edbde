"""Inter-token gaps longer than one step: of sequences that waited while prompts were prefilled."""

from capplan.serving.gauges import WeightedHistogram


class TokenGaps:
    """Groups of decoding sequences, in the order in which they joined, and since when each waits for its next token."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        """Start without waiting sequences."""
        self.groups: list[tuple[int, float]] = []

    def wait(self, sequences: int, since_s: float) -> None:
        """Add a group of sequences that wait: those that joined last."""
        if sequences:
            self.groups.append((sequences, since_s))

    def since_s(self, place: int, now_s: float) -> float:
        """Return when the sequence at this place in the order of joining got its latest token.

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
        """Remove the sequence at this place in the order of joining."""
        for group, (count, since) in enumerate(self.groups):
            if place < count:
                self.groups[group : group + 1] = [(count - 1, since)] if count > 1 else []
                return
            place -= count

    def end(self, now_s: float, into: WeightedHistogram) -> None:
        """Record all gaps: every waiting sequence has its next token."""
        for count, since in self.groups:
            into.add(now_s - since, count)
        self.groups.clear()
