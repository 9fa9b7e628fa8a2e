"""The Python runtime: an interpreter of capture plans on wgpu."""
