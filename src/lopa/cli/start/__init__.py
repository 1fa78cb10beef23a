"""The commands to start with: demo, doctor, completion."""
