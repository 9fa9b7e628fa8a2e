"""The ONNX backend node cases: harness and ledger."""
