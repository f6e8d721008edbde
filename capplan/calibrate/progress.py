"""A progress line on the terminal; nothing if stderr is not a terminal."""

import sys
import time
from dataclasses import dataclass, field

LINE = 100


@dataclass(slots=True)
class Progress:
    """Progress of a run with a time budget."""

    expected_s: float
    started: float = field(default_factory=time.monotonic)
    shown: bool = field(default_factory=lambda: sys.stderr.isatty())

    def show(self, done_fraction: float, title: str) -> None:
        """Rewrite the line."""
        if not self.shown:
            return
        left = self.remaining_s(done_fraction)
        bar = "#" * round(20 * done_fraction)
        text = f"[{bar:<20}] {done_fraction:4.0%} {int(left) // 60:d}:{int(left) % 60:02d} left  {title}"
        sys.stderr.write("\r" + text[:LINE].ljust(LINE))
        sys.stderr.flush()

    def remaining_s(self, done_fraction: float) -> float:
        """Return the remaining time at the pace so far, at most the rest of the budget [s]."""
        elapsed = time.monotonic() - self.started
        left = max(self.expected_s - elapsed, 0.0)
        return min(elapsed * (1.0 - done_fraction) / done_fraction, left) if done_fraction >= 0.02 else left

    def close(self) -> None:
        """Clear the line."""
        if self.shown:
            sys.stderr.write("\r" + " " * LINE + "\r")
            sys.stderr.flush()
