"""Answers that satisfy a grammar: what may follow a text, and how it can still end. Knows no branch and no block.

`source` makes of a JSON schema, a regular expression or a grammar what the library takes, and `library` alone imports
it. `vocabulary` has the tokens of a bundle; a `reading` is a text read so far, `ending` (with `byte_order`) finds a
short way to its end, and `state` is both, as it travels with a branch (docs/how-to/structured-output.md).
"""
