"""Our forwards on the CPU beside llama.cpp, OpenVINO and torch on the same random checkpoint."""
