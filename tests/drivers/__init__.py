"""What software drivers do with floats, swept."""
