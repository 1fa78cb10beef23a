"""What several commands show on a terminal: bars, stages, words about a run."""
