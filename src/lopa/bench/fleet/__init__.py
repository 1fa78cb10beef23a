"""Many replicas under a load, simulated from recorded decodes and costs of forwards (docs/scale.md)."""
