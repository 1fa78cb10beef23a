"""Run the fuzzer: python -m tools.fuzz (docs/fuzzing.md)."""

from tools.fuzz.run import main

main()
