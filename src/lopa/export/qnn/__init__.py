"""Build of engines for Qualcomm NPUs: one QNN context binary per shape bucket."""
