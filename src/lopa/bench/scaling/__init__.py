"""More devices: measured and modelled."""
