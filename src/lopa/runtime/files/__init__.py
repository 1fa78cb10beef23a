"""Files of others read within limits, and outputs written whole. Knows no bundle."""
