"""The release: archives that two builds make the same, checked, described and tried; nothing is uploaded."""
