"""Probabilities of given answers by the masked model: choices, their rows, and the state of a scoring request."""
