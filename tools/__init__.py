"""Programs of the developers: reports, recordings, the fuzzer, random checkpoints. Not in the wheel."""
