"""Score against speed."""
