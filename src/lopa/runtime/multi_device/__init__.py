"""Sessions over several devices of one process: branches shared by devices, or layers split into pipeline stages."""
