"""Questions to measure with, what can be reached on them, and a bundle as a model of lm-eval."""
