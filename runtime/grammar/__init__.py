"""Answers that satisfy a grammar: what may stand at the frontier of a branch, and how the text can still end.

`source` makes of a JSON schema, a regular expression or a grammar what the library takes; `library` is the only module
that imports it. `reading` is a text read so far, token by token; `ending` finds a short way to its end; `state` is both,
as it travels with a branch. `rows` and `frontier` meet the algorithm: which of a row's candidates may stand there, and
how far the decided tokens of a branch are right (docs/grammars.md).
"""
