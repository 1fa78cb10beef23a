"""Sessions over several devices of one process: branches dealt out, layers in stages."""
