"""Files that several commands write and read: step logs."""
