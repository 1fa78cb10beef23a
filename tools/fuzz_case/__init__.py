"""One case of the fuzzer: what it is made of, how it is altered, the processes it runs in, and what its end says."""
