"""Simulation of a fleet of replicas under load, from recorded decodes and costs of forwards
(docs/how-to/measure.md)."""
