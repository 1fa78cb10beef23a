"""The commands of a first hour: demo, doctor, completion."""
