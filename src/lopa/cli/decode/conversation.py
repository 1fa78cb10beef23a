"""A conversation: its turns, what of it still fits into the model, and its file. Knows no terminal and no device."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

Message = dict[str, str]


@dataclass
class Conversation:
    """Questions with their answers, after an optional word to the model on how to answer."""

    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)
    forgotten: int = 0
    """Of the turns, the oldest ones that the model no longer sees."""

    def messages(self, question: str | None = None) -> list[Message]:
        """What the model sees: the system message, the turns that are not forgotten, and a new question."""
        shown = [("system", self.system)] if self.system is not None else []
        for asked, answered in self.turns[self.forgotten :]:
            shown += [("user", asked), ("assistant", answered)]
        if question is not None:
            shown.append(("user", question))
        return [{"role": role, "content": text} for role, text in shown if text is not None]

    def forget_until(self, fits: Callable[[list[Message]], bool], question: str) -> int:
        """Forget the oldest turns until the messages with `question` fit; how many went, 0 if that does not help."""
        before = self.forgotten
        for count in range(len(self.turns) - before + 1):
            self.forgotten = before + count
            if fits(self.messages(question)):
                return count
        self.forgotten = before
        return 0

    def undo(self) -> bool:
        """Take the last turn back; False when there is none."""
        if not self.turns:
            return False
        self.turns.pop()
        self.forgotten = min(self.forgotten, len(self.turns))
        return True

    def reset(self) -> None:
        """Begin anew; the system message stays."""
        self.turns.clear()
        self.forgotten = 0

    def lines(self) -> list[str]:
        """Every message as a line of JSON, forgotten ones too."""
        whole = Conversation(self.system, self.turns)
        return [json.dumps(message, ensure_ascii=False) for message in whole.messages()]
