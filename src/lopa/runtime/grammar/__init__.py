"""Answers that satisfy a grammar: which tokens may follow a text, and how it can end.

`grammar_source` converts a JSON schema, regular expression or grammar to the library's form; only `llguidance_library`
imports it. `vocabulary` has a bundle's tokens. `grammar_matcher` holds a text parsed so far. `ending` (with
`byte_order`) finds a short way to its end. `state` combines both and belongs to a branch
(docs/how-to/structured-output.md). This package does not depend on branches or blocks.
"""
