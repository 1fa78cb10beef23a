"""HTTP around the answers: errors in OpenAI's form, bodies within limits, keys, clients that go away, events."""
