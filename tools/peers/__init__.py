"""Comparison of our CPU forwards with llama.cpp, OpenVINO, ONNX Runtime GenAI and torch on the same random checkpoint."""
