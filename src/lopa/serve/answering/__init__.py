"""From a checked body to an answer: places, requests of the engine, whole answers and streams."""
