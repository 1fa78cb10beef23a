"""Strategies: which positions a step decides, as one rule of five stages (docs/decoding.md, "Five stages"). Pure.

A strategy is a line in the table of `settings`: a function for each stage. In the order of a round:

1. `rescore`: what a forward said, before candidates are made of it; keeps what a strategy remembers in `Branch.memory`.
2. `eligible`: which positions may count as certain.
3. `threshold`: what each position has to exceed; `rank` orders them.
4. `cut`: how many of those that do are taken, the first by rank; `least` says how many a step takes at any rate.
5. `take_back`: which decided positions are undecided again.

Stages 2 to 4 see one `open_block` at a time and know neither branches nor sessions; `places` goes through them.
"""
