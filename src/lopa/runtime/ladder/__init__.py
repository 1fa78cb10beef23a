"""Fewer forwards for the same tokens (docs/decoding.md, "The same tokens in fewer forwards"). Pure.

Beside the state that a rule has reached, a forward computes `guesses` of its next ones, a branch each. Where the rule,
by the answers to one state, arrives at another that was computed too, it goes on from there: `walk`. `question` says
when two states are asked the same, so that the answers to one are those to the other. `advance` is a round of these.
"""
