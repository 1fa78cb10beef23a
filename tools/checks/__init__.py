"""The plan of the house: which room may import which, and its picture (ARCHITECTURE.md)."""
