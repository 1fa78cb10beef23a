"""A server under load, as many clients see it: a benchmark over HTTP and a soak, with a client that may misbehave."""
