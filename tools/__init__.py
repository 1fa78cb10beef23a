"""Programs of the developers: reports, recordings, the fuzzer, random checkpoints. Not in the wheel.

`python -m tools.measure` lists measurements and checks. Programs are run by `python -m` and the name of their module
from the root of the repository, as their own text says, with this project installed or PYTHONPATH=src. Some use helpers
of the tests.
"""
