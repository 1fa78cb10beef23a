"""How many of those who wait may join the next round. Knows numbers of rows only: no request, no queue, no thread.

A prompt is computed whole, in one forward, which everybody who runs has to wait for: its rows see each other, so that
it cannot be cut into pieces. What can be bounded is how many prompts are computed in one round, and how often.
"""

from collections.abc import Sequence

MAX_NUM_BATCHED_TOKENS = 1024
"""As many as eight requests with four branches of a block of 32 have in a round."""


class Admission:
    """Lets `rows_per_round` rows of prompts join a round.

    A longer prompt joins once the rounds that it waited for have earned its rows. So no round computes more than that,
    or than one prompt, and many rounds one after another no more than that each.
    """

    def __init__(self, rows_per_round: int) -> None:
        self._rows_per_round = rows_per_round
        self._earned = 0

    def number_joining(self, rows: Sequence[int], *, nothing_runs: bool) -> int:
        """How many of the first who wait join this round, in their order; one at least where nothing runs.

        `rows` are the prompt rows that each would compute, for as many as there are slots free.
        """
        if not rows:
            return 0  # a round in which nobody could join earns nothing
        self._earned = min(self._earned + self._rows_per_round, max(rows[0], self._rows_per_round))
        number = 0
        for each in rows:
            harms_nobody = nothing_runs and number == 0
            if each > self._earned and not harms_nobody:
                return number
            self._earned = max(0, self._earned - each)
            number += 1
        return number
