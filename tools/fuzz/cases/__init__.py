"""What is mutated: a file for each sort, whose functions make a case each."""
