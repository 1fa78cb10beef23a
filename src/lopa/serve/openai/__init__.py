"""OpenAI's shapes, shared by the server and by batch files: what a body asks for, how it is answered. Knows no HTTP."""
