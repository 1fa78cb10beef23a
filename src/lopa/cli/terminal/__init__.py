"""Output that several commands share: progress bars, stages of long work, lists of defaults."""
