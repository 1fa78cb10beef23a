"""Chats as prompts: tools and reasoning that a chat asks for, its token IDs, and the grammar and form of its answer."""
