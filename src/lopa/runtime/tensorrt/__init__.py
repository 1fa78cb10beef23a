"""TensorRT engines: what engine.json says, profiles, plans, contexts."""
