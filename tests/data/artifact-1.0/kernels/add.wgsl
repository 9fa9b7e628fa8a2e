// add
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) id: vec3<u32>) { let i = id.x; b2[i] = b0[i] + b1[i]; }
