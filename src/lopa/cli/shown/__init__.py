"""What several commands show on a terminal: bars and stages of long work."""
