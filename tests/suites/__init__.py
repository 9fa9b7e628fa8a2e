"""Suites over whole networks and the ONNX node cases."""
