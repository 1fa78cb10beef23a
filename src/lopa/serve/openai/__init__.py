"""OpenAI's request and response formats, shared by the server and batch files. This package does not depend on HTTP."""
