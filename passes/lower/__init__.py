"""Lowerings of the ONNX operators to tensor programs, one operator family a file."""
