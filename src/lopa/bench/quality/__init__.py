"""Quality benchmark, which plots score against speed."""
