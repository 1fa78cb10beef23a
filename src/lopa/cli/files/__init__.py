"""Files that several commands write and read: traces of a decode and timelines."""
