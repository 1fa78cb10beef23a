"""Real servers under a simulated fleet's load (docs/scale.md)."""
