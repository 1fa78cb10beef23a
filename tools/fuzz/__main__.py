"""python -m tools.fuzz: the fuzzer as a program (docs/fuzzing.md)."""

from tools.fuzz.run import main

main()
