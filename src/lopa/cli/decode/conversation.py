"""A conversation: its turns, the turns that fit into the model, and its file format. No terminal or device is used."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

Message = dict[str, str]


@dataclass
class Conversation:
    """Questions with their answers, after an optional system message."""

    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)
    dropped: int = 0
    """Number of oldest turns that the model no longer receives."""

    def messages(self, question: str | None = None) -> list[Message]:
        """Return the model's input: the system message, the turns that are not dropped, and a new question."""
        shown = [("system", self.system)] if self.system is not None else []
        for question_before, answer in self.turns[self.dropped :]:
            shown += [("user", question_before), ("assistant", answer)]
        if question is not None:
            shown.append(("user", question))
        return [{"role": role, "content": text} for role, text in shown if text is not None]

    def drop_until(self, fits: Callable[[list[Message]], bool], question: str) -> int:
        """Drop the oldest turns until the messages with `question` fit.

        Returns the number of turns dropped now. If even dropping all does not suffice, it drops none.
        """
        before = self.dropped
        for count in range(len(self.turns) - before + 1):
            self.dropped = before + count
            if fits(self.messages(question)):
                return count
        self.dropped = before
        return 0

    def undo(self) -> bool:
        """Remove the last turn. Returns False when there is none."""
        if not self.turns:
            return False
        self.turns.pop()
        self.dropped = min(self.dropped, len(self.turns))
        return True

    def reset(self) -> None:
        """Remove all turns and keep the system message."""
        self.turns.clear()
        self.dropped = 0

    def lines(self) -> list[str]:
        """Return every message, including dropped ones, as a line of JSON."""
        whole = Conversation(self.system, self.turns)
        return [json.dumps(message, ensure_ascii=False) for message in whole.messages()]
