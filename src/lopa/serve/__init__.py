"""An OpenAI-compatible server over lopa.runtime.Engine. What needs the extra `serve` is imported when it starts."""
