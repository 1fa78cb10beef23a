"""Speed benchmark: our decoder compared with an eager PyTorch loop."""
