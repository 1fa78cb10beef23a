"""python -m tools.fuzz: the fuzzer as a program (tools/fuzz/README.md)."""

from tools.fuzz.run import main

main()
