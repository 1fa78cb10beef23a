"""Developer programs: reports, recordings, the fuzzer, random checkpoints. They are not part of the wheel.

`python -m tools.measure` lists measurements and checks. Run a program with `python -m MODULE` from the root of the
repository, as its docstring says. This project must be installed or PYTHONPATH=src set. Some programs use test helpers.
"""
