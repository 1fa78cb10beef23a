"""Probabilities of given answers by the masked model: choices, their windows, and the state of a scoring request."""
