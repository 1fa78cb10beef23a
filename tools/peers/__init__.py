"""Comparison of our CPU forwards with llama.cpp, OpenVINO and torch on the same random checkpoint."""
