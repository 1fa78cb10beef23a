"""The contract on OpenVINO: its library, its devices, and sessions with their caches in the host's memory."""
