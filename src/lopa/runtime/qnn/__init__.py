"""Qualcomm NPUs, by ONNX Runtime's plug-in for QNN."""
