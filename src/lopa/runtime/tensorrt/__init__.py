"""TensorRT engines: engine.json, profiles, plans and contexts."""
