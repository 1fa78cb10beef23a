"""Programs of the developers: reports, recordings, the fuzzer, random checkpoints. Not in the wheel.

Each is run by `python -m` and the name of its module from the root of the repository, as its own text says, with this
project installed or PYTHONPATH=src; some use helpers of the tests.
"""
