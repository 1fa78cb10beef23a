"""Run the fuzzer: python -m tools.fuzz (tools/fuzz/README.md)."""

from tools.fuzz.run import main

main()
