"""Many replicas under a load, simulated from recorded decodes and costs of forwards (docs/how-to/measure.md)."""
