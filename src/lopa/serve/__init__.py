"""OpenAI-compatible server over lopa.runtime.Engine. It imports packages of the extra `serve` only when it starts."""
