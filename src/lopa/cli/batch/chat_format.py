"""A text as a chat, for --chat."""

from dataclasses import dataclass

from lopa.runtime.chat.chat import Chat


@dataclass(frozen=True)
class ChatFormat:
    """Conversion of a text into a chat, with an optional system message."""

    system: str | None = None

    def chat(self, text: str) -> Chat:
        """Return `text` as a user's message, after the system message if there is one."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return Chat([*before, {"role": "user", "content": text}])
