// scale
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
struct Uniforms { factor: f32, bias: f32, }
@group(0) @binding(16) var<uniform> u: Uniforms;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) id: vec3<u32>) { let i = id.x; b1[i] = b0[i] * u.factor; }
