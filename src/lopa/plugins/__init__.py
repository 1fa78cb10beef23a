"""Operators that an engine may load for one step of the contract, each beside a readable numpy reference."""
