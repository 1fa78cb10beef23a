"""Quality benchmark: score against speed."""
