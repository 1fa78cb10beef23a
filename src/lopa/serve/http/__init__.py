"""HTTP layer around the answers: errors in OpenAI's form, body limits, keys, disconnects and server-sent events."""
