"""Tool calls and reasoning in chats: what a request asks for, the grammar of an answer, and its parts as they arrive.
This package does not depend on HTTP or the engine."""
