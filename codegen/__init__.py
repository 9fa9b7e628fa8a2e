"""From tensor programs to kernels: schedules, tile skeletons and the WGSL printer."""
