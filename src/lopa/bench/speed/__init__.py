"""Speed benchmark, which compares lopa's decoder with an eager PyTorch loop."""
