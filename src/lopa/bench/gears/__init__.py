"""The planner of gears."""
