"""Small models on which other WebGPU implementations were publicly reported wrong."""
