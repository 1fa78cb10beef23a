"""The protocols of the server: OpenAI's chats, completions and responses, and Anthropic's messages. For each, the
request from a body and the reply in its form."""
