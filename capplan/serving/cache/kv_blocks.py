"""KV blocks of sequences that all grow by one token per step, counted without visiting each sequence."""


class KvBlocks:
    """The number of blocks that the decoding sequences hold, as a function of the step counter.

    A sequence that holds x_i + u tokens at counter u leaves pad_i = (-x_i - u) mod b slots of its last block empty, so

        sum_i ceil((x_i + u) / b) = (sum_i x_i + n u + sum_i pad_i) / b

    and the pads follow from the number of sequences at each phase (-x_i) mod b, which does not depend on u.
    """

    __slots__ = ("_phase_sum", "_phases", "block_tokens", "sequences", "tokens")

    def __init__(self, block_tokens: int) -> None:
        """Start without sequences."""
        self.block_tokens = block_tokens
        self.sequences = 0
        self.tokens = 0
        self._phases = [0] * block_tokens
        self._phase_sum = 0

    def join(self, base: int) -> None:
        """Add a sequence that holds base + u tokens at counter u; base may be negative."""
        phase = -base % self.block_tokens
        self.sequences += 1
        self.tokens += base
        self._phases[phase] += 1
        self._phase_sum += phase

    def leave(self, base: int) -> None:
        """Remove a sequence that joined with this base."""
        phase = -base % self.block_tokens
        self.sequences -= 1
        self.tokens -= base
        self._phases[phase] -= 1
        self._phase_sum -= phase

    def blocks(self, counter: int) -> int:
        """Return the blocks held at counter u.

        Examples
        --------
        Two sequences of 16 and 17 tokens in blocks of 16, now and sixteen steps later:

        >>> held = KvBlocks(16)
        >>> held.join(16)
        >>> held.join(17)
        >>> held.blocks(0), held.blocks(16)
        (3, 5)
        """
        block = self.block_tokens
        count = self.sequences
        part = counter % block
        pads = self._phase_sum - count * part + block * sum(self._phases[:part])
        return (self.tokens + count * counter + pads) // block

    def within(self, counter: int, capacity: int, growth: float, step: int, most: int) -> int:
        """Return for how many more steps, up to `most`, the blocks stay within a capacity.

        Parameters
        ----------
        counter : [tokens]
            u now, floor(growth x step).
        capacity : [blocks]
        growth : [tokens]
            that a sequence gains per step.
        step : [-]
            number of the current step.
        most : [-]
            upper limit of the result.

        Examples
        --------
        One sequence of 16 tokens fills a block of 16; a second block lasts for 16 more tokens:

        >>> held = KvBlocks(16)
        >>> held.join(16)
        >>> held.within(0, capacity=2, growth=1.0, step=0, most=100)
        16
        """
        reach = counter + int(growth * most) + 1
        if self.tokens + self.sequences * (reach + self.block_tokens) <= capacity * self.block_tokens:
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(int(growth * (step + middle))) <= capacity:
                low = middle
            else:
                high = middle - 1
        return low
