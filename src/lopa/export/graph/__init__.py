"""From sizes to ONNX graphs: modules, tracing, passes, the rules of the portable dialect."""
