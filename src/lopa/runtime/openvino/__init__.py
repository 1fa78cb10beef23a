"""The contract on OpenVINO: library, devices, and sessions with caches in host memory."""
