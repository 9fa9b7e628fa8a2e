"""WGSL functions for the operators that WGSL lacks or that drivers get wrong; a kernel gets those that it uses.

Each takes and gives the types that its name says. `need` lists functions that a text calls. Values that are not finite
come from a private variable, since compilers reject or fold constant expressions that produce them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .double_float import DOUBLE_FLOAT

_FUNCTIONS: dict[str, str] = {
    "inf_bits": "var<private> inf_bits: u32 = 0x7f800000u;",
    "nan_bits": "var<private> nan_bits: u32 = 0x7fc00000u;",
    "is_nan": "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }",
    "is_inf": "fn is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }",
    "max_f32": "fn max_f32(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }",
    "min_f32": "fn min_f32(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }",
    "sign_f32": "fn sign_f32(x: f32) -> f32 { return select(sign(x), x, is_nan(x)); }",
    "eq_f32": """fn eq_f32(a: f32, b: f32) -> bool {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  let same = x == y || ((x | y) & 0x7fffffffu) == 0u;
  return (same || a == b) && !is_nan(a) && !is_nan(b);
}""",
    "lt_f32": "fn lt_f32(a: f32, b: f32) -> bool { return a < b && !is_nan(a) && !is_nan(b); }",
    "le_f32": "fn le_f32(a: f32, b: f32) -> bool { return a <= b && !is_nan(a) && !is_nan(b); }",
    "scale_f32": """fn scale_f32(x: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}""",
    "tanh_f32": """fn tanh_f32(x: f32) -> f32 {
  let t = min(abs(x), 10.0);
  let s = x * x;
  let p = (((-5.70498873e-3 * s + 2.06390888e-2) * s - 5.37397156e-2) * s + 0.133314422) * s - 0.333332819;
  let small = p * s * x + x;
  let large = 1.0 - 2.0 / (exp_f32(2.0 * t) + 1.0);
  return select(select(select(large, -large, x < 0.0), small, t < 0.625), x, is_nan(x));
}""",
    "exp_f32": """fn exp_f32(x: f32) -> f32 {
  let t = clamp(x, -104.0, 89.0);
  let n = round(t * 1.44269504);
  let r = (t - n * 0.693359375) + n * 2.12194440e-4;
  var p = ((1.98756915e-4 * r + 1.39819995e-3) * r + 8.33345191e-3) * r + 4.16657959e-2;
  p = ((p * r + 0.166666655) * r + 0.5) * r * r + r + 1.0;
  let edge = select(x, bitcast<f32>(inf_bits), x > 88.7228317);
  return select(scale_f32(p, i32(n)), edge, x > 88.7228317 || is_nan(x));
}""",
    "log_f32": """fn log_f32(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) == 0u) { return -bitcast<f32>(inf_bits); }
  if (bits >= 0x7f800000u) { return select(bitcast<f32>(nan_bits), x, bits == 0x7f800000u); }
  let tiny = bits < 0x800000u;
  let moved = select(bits, bitcast<u32>(f32(i32(bits))), tiny) - 0x3f3504f3u;
  let e = f32((bitcast<i32>(moved) >> 23u) - select(0, 149, tiny));
  let f = bitcast<f32>((moved & 0x7fffffu) + 0x3f3504f3u) - 1.0;
  let s = f * f;
  var p = ((7.03768363e-2 * f - 0.115146103) * f + 0.116769987) * f - 0.124201408;
  p = ((((p * f + 0.142493228) * f - 0.166680577) * f + 0.200007148) * f - 0.249999940) * f + 0.333333312;
  return (f + (f * s * p - e * 2.12194440e-4 - 0.5 * s)) + e * 0.693359375;
}""",
    "sqrt_f32": """fn sqrt_f32(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let edge = select(x, bitcast<f32>(nan_bits), bits > 0x80000000u);
  return select(edge, sqrt(x), bits > 0u && bits < 0x7f800000u);
}""",
    "high_f32": "fn high_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }",
    "power_f32": """fn power_f32(a: f32, b: f32) -> f32 {
  let bits = bitcast<u32>(a);
  let tiny = bits < 0x800000u;
  let size = select(bits, bitcast<u32>(f32(i32(bits))), tiny);
  let j = size & 0x7fffffu;
  let middle = j > 0x1cc471u && j < 0x5db3d7u;
  let above = select(0u, 1u, j >= 0x5db3d7u);
  let e = f32(i32((size >> 23u) + above) - 127 - select(0, 149, tiny));
  let m = (j | 0x3f800000u) - (above << 23u);
  let x = bitcast<f32>(m);
  let base = select(1.0, 1.5, middle);
  let u = x - base;
  let v = 1.0 / (x + base);
  let s = u * v;
  let sh = high_f32(s);
  let th = bitcast<f32>((((m >> 1u) & 0xfffff000u) | 0x20000000u) + 0x400000u + select(0u, 0x200000u, middle));
  let tl = x - (th - base);
  let sl = v * ((u - sh * th) - sh * tl);
  let q = s * s;
  let tail = 0.333333343 + q * (0.272728115 + q * (0.230660751 + q * 0.206975013));
  var r = q * q * (0.6 + q * (0.428571433 + q * tail));
  r += sl * (sh + s);
  let w = sh * sh;
  let ch = high_f32(3.0 + w + r);
  let cl = r - ((ch - 3.0) - w);
  let ph = high_f32(sh * ch + (sl * ch + cl * s));
  let pl = (sl * ch + cl * s) - (ph - sh * ch);
  let zh = 0.961914063 * ph;
  let zl = -1.17368574e-4 * ph + pl * 0.961796701 + select(0.0, 1.56322085e-6, middle);
  let dh = select(0.0, 0.584960938, middle);
  let t1 = high_f32(((zh + zl) + dh) + e);
  let t2 = zl - (((t1 - e) - dh) - zh);
  let bh = high_f32(b);
  let yl = (b - bh) * t1 + b * t2;
  let yh = bh * t1;
  let z = yl + yh;
  if (z >= 128.0) { return bitcast<f32>(inf_bits); }
  if (z < -150.0) { return 0.0; }
  let n = round(z);
  let t = bitcast<f32>(bitcast<u32>(yl + (yh - n)) & 0xffff8000u);
  let g = t * 0.693145752;
  let h = (yl - (t - (yh - n))) * 0.693147182 + t * 1.42860654e-6;
  let k = g + h;
  let l = h - (k - g);
  let c = k * k;
  let d = k - c * (0.166666672 + c * (-2.77777785e-3 + c * (6.61375598e-5 + c * (-1.65339020e-6 + c * 4.13813694e-8))));
  return scale_f32(1.0 - (((k * d) / (d - 2.0) - (l + k * l)) - k), i32(n));
}""",
    "pow_f32": """fn pow_f32(a: f32, b: f32) -> f32 {
  if (b == 0.0 || a == 1.0) { return 1.0; }
  if (is_nan(a) || is_nan(b)) { return bitcast<f32>(nan_bits); }
  if (b == 1.0) { return a; }
  if (b == 2.0) { return a * a; }
  if (b == 3.0) { return a * a * a; }
  if (b == -1.0 && a != 0.0) { return 1.0 / a; }
  if (b == 0.5 && a >= 0.0) { return sqrt_f32(a); }
  let whole = floor(b) == b;
  let odd = whole && abs(b) < 16777216.0 && floor(b * 0.5) * 2.0 != b;
  let size = bitcast<f32>(bitcast<u32>(a) & 0x7fffffffu);
  let negative = odd && bitcast<u32>(a) >= 0x80000000u;
  if (bitcast<u32>(size) == 0u || is_inf(a) || is_inf(b)) {
    let vanishes = select((size < 1.0) == (b > 0.0), false, size == 1.0);
    let edge = select(select(bitcast<f32>(inf_bits), 0.0, vanishes), 1.0, size == 1.0);
    return select(edge, -edge, negative);
  }
  if (a < 0.0 && !whole) { return bitcast<f32>(nan_bits); }
  let made = power_f32(size, b);
  return select(made, -made, negative);
}""",
    "erf_f32": """fn erf_f32(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  if (t > 0.927734375) {
    var r = fma(-1.72853470e-5, t, 3.83197126e-4);
    r = fma(r, s, fma(-3.88396438e-3, t, 2.42546219e-2));
    r = fma(r, t, -1.06777877e-1);
    r = fma(r, t, -6.34846687e-1);
    r = fma(r, t, -1.28717512e-1);
    r = 1.0 - exp_f32(max(fma(r, t, -t), -80.0));
    r = select(r, 1.0, t > 4.0);
    return select(select(r, -r, x < 0.0), x, is_nan(x));
  }
  var r = fma(-5.96761703e-4, s, 4.99119423e-3);
  r = fma(r, s, -2.67681349e-2);
  r = fma(r, s, 1.12819925e-1);
  r = fma(r, s, -3.76125336e-1);
  r = fma(r, s, 1.28379166e-1);
  return select(fma(r, x, x), x, is_nan(x));
}""",
    "quarter_turns": """fn quarter_turns(x: f32) -> vec2<f32> {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  if (size < 0x3f490fdbu) { return vec2<f32>(x, 0.0); }
  if (size >= 0x7f800000u) { return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }
  var digits = array<u32, 7>(0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u);
  let mantissa = (bits << 8u) | 0x80000000u;
  let e = (size >> 23u) - 126u;
  let i = e >> 5u;
  let n = e & 31u;
  let top = vec3<u32>(digits[i], digits[i + 1u], digits[i + 2u]);
  let rest = vec3<u32>(digits[i + 1u], digits[i + 2u], digits[i + 3u]);
  let word = select((top << vec3<u32>(n)) | (rest >> vec3<u32>((32u - n) & 31u)), top, n == 0u);
  let low = vec2<u32>(mulhi_u32(mantissa, word.z), 0u);
  let middle = vec2<u32>(mantissa * word.y, mulhi_u32(mantissa, word.y));
  let turn = add64(add64(low, middle), vec2<u32>(0u, mantissa * word.x));
  let near = (turn.y + 0x20000000u) >> 30u;
  let r = s64tof32(sub64(turn, vec2<u32>(0u, near << 30u))) * 3.40612158e-19;
  let q = f32(i32(near & 3u));
  return select(vec2<f32>(r, q), vec2<f32>(-r, 4.0 - q), bits != size);
}""",
    "sine_of": """fn sine_of(r: f32) -> f32 {
  let s = r * r;
  return ((-1.95152959e-4 * s + 8.33216087e-3) * s - 0.166666546) * s * r + r;
}""",
    "cosine_of": """fn cosine_of(r: f32) -> f32 {
  let s = r * r;
  return ((2.44331571e-5 * s - 1.38873163e-3) * s + 4.16666457e-2) * s * s - 0.5 * s + 1.0;
}""",
    "sin_f32": """fn sin_f32(x: f32) -> f32 {
  let t = quarter_turns(x);
  let q = u32(t.y);
  let size = select(sine_of(t.x), cosine_of(t.x), (q & 1u) == 1u);
  return select(size, -size, (q & 2u) == 2u);
}""",
    "cos_f32": """fn cos_f32(x: f32) -> f32 {
  let t = quarter_turns(x);
  let q = u32(t.y) + 1u;
  let size = select(sine_of(t.x), cosine_of(t.x), (q & 1u) == 1u);
  return select(size, -size, (q & 2u) == 2u);
}""",
    "tan_f32": """fn tan_f32(x: f32) -> f32 {
  let t = quarter_turns(x);
  let sine = sine_of(t.x);
  let cosine = cosine_of(t.x);
  return select(sine / cosine, -cosine / sine, (u32(t.y) & 1u) == 1u);
}""",
    "sinh_f32": """fn sinh_f32(x: f32) -> f32 {
  let s = x * x;
  let small = ((2.03721913e-4 * s + 8.33028376e-3) * s + 0.166667160) * s * x + x;
  let half = exp_f32(abs(x) * 0.5);
  let large = 0.5 * half * half - 0.5 / half / half;
  return select(select(large, -large, x < 0.0), small, abs(x) < 1.0);
}""",
    "cosh_f32": """fn cosh_f32(x: f32) -> f32 {
  let half = exp_f32(abs(x) * 0.5);
  return 0.5 * half * half + 0.5 / half / half;
}""",
    "asinh_f32": """fn asinh_f32(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  let small = (((2.01220033e-2 * s - 4.26993410e-2) * s + 7.48475861e-2) * s - 0.166662881) * s * x + x;
  let large = select(log_f32(t + sqrt(s + 1.0)), log_f32(t) + 0.69314718, t > 1500.0);
  return select(select(large, -large, x < 0.0), small, t < 0.5);
}""",
    "acosh_f32": """fn acosh_f32(x: f32) -> f32 {
  let t = x - 1.0;
  let near = (((1.75968811e-3 * t - 7.52728867e-3) * t + 2.64549050e-2) * t - 0.117847417) * t + 1.41421353;
  let far = select(log_f32(x + sqrt_f32(t * (x + 1.0))), log_f32(x) + 0.69314718, x > 1500.0);
  return select(far, near * sqrt_f32(t), t < 0.5);
}""",
    "atanh_f32": """fn atanh_f32(x: f32) -> f32 {
  let s = x * x;
  var p = (((0.181740078 * s + 8.24370301e-2) * s + 0.146691431) * s + 0.199782164) * s + 0.333337300;
  return select(0.5 * log_f32((1.0 + x) / (1.0 - x)), p * s * x + x, abs(x) < 0.5);
}""",
    "arcsine_of": """fn arcsine_of(x: f32) -> f32 {
  let s = x * x;
  let p = (((4.21631990e-2 * s + 2.41813111e-2) * s + 4.54700260e-2) * s + 7.49530027e-2) * s + 0.166667524;
  return p * s * x + x;
}""",
    "asin_f32": """fn asin_f32(x: f32) -> f32 {
  let t = abs(x);
  let large = 1.57079633 - 2.0 * arcsine_of(sqrt_f32(0.5 - 0.5 * t));
  let r = select(select(large, -large, x < 0.0), arcsine_of(x), t <= 0.5);
  return select(r, bitcast<f32>(nan_bits), t > 1.0 || is_nan(x));
}""",
    "acos_f32": """fn acos_f32(x: f32) -> f32 {
  let t = abs(x);
  let large = 2.0 * arcsine_of(sqrt_f32(0.5 - 0.5 * t));
  let r = select(select(large, 3.14159265 - large, x < 0.0), 1.57079633 - arcsine_of(x), t <= 0.5);
  return select(r, bitcast<f32>(nan_bits), t > 1.0 || is_nan(x));
}""",
    "atan_f32": """fn atan_f32(x: f32) -> f32 {
  let t = abs(x);
  let far = t > 2.41421356;
  let near = t <= 0.414213562;
  let r = select(select((t - 1.0) / (t + 1.0), -1.0 / t, far), t, near);
  let s = r * r;
  let p = (((8.05374450e-2 * s - 0.138776856) * s + 0.199777106) * s - 0.333329492) * s * r + r;
  let size = p + select(select(0.785398163, 1.57079633, far), 0.0, near);
  return select(select(size, x, t < 1.0e-4 || is_nan(x)), -size, x < 0.0 && t >= 1.0e-4);
}""",
    "rem_f32": """fn rem_f32(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u) { return bitcast<f32>(nan_bits); }
  if (x < y) { return a; }
  let low = max(y >> 23u, 1u);
  let divisor = (y & 0x7fffffu) | select(0u, 0x800000u, y >= 0x800000u);
  var rest = ((x & 0x7fffffu) | select(0u, 0x800000u, x >= 0x800000u)) % divisor;
  var steps = max(x >> 23u, 1u) - low;
  while (steps > 0u) {
    let some = min(steps, 8u);
    rest = (rest << some) % divisor;
    steps -= some;
  }
  let size = scale_f32(f32(i32(rest)), i32(low) - 150);
  return select(size, -size, bitcast<u32>(a) >= 0x80000000u);
}""",
    "mod_f32": """fn mod_f32(a: f32, b: f32) -> f32 {
  let r = rem_f32(a, b);
  return select(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
}""",
    "div_i32": "fn div_i32(a: i32, b: i32) -> i32 { return select(a / select(b, 1, b == 0), 0, b == 0); }",
    "div_u32": "fn div_u32(a: u32, b: u32) -> u32 { return select(a / select(b, 1u, b == 0u), 0u, b == 0u); }",
    "rem_i32": "fn rem_i32(a: i32, b: i32) -> i32 { return select(a - b * div_i32(a, b), 0, b == 0); }",
    "rem_u32": "fn rem_u32(a: u32, b: u32) -> u32 { return select(a % select(b, 1u, b == 0u), 0u, b == 0u); }",
    "floordiv_i32": """fn floordiv_i32(a: i32, b: i32) -> i32 {
  let q = div_i32(a, b);
  return select(q, q - 1, q * b != a && (a < 0) != (b < 0) && b != 0);
}""",
    "mod_i32": """fn mod_i32(a: i32, b: i32) -> i32 {
  let r = rem_i32(a, b);
  return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}""",
    "shl_i32": "fn shl_i32(a: i32, n: u32) -> i32 { return select(a << (n & 31u), 0, n > 31u); }",
    "shl_u32": "fn shl_u32(a: u32, n: u32) -> u32 { return select(a << (n & 31u), 0u, n > 31u); }",
    "shr_i32": "fn shr_i32(a: i32, n: u32) -> i32 { return a >> min(n, 31u); }",
    "shr_u32": "fn shr_u32(a: u32, n: u32) -> u32 { return select(a >> (n & 31u), 0u, n > 31u); }",
    "f32_to_i32": """fn f32_to_i32(x: f32) -> i32 {
  let inside = i32(clamp(select(x, 0.0, is_nan(x)), -2147483648.0, 2147483520.0));
  return select(inside, 2147483647, x >= 2147483648.0);
}""",
    "f32_to_u32": """fn f32_to_u32(x: f32) -> u32 {
  let inside = u32(clamp(select(x, 0.0, is_nan(x)), 0.0, 4294967040.0));
  return select(inside, 4294967295u, x >= 4294967296.0);
}""",
    "mulhi_u32": """fn mulhi_u32(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let mid = ah * bl + ((al * bl) >> 16u);
  let low = al * bh + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (low >> 16u);
}""",
    "add64": """fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let lo = a.x + b.x;
  return vec2<u32>(lo, a.y + b.y + select(0u, 1u, lo < a.x));
}""",
    "neg64": "fn neg64(a: vec2<u32>) -> vec2<u32> { return add64(~a, vec2<u32>(1u, 0u)); }",
    "sub64": """fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}""",
    "mul64": """fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x * b.x, mulhi_u32(a.x, b.x) + a.x * b.y + a.y * b.x);
}""",
    "ult64": """fn ult64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}""",
    "divide64": """fn divide64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  if (all(b == vec2<u32>(0u, 0u))) { return vec4<u32>(0u, 0u, 0u, 0u); }
  if (a.y == 0u && b.y == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  for (var i = 0u; i < 64u; i++) {
    let word = select(a.x, a.y, i < 32u);
    let bit = (word >> (31u - (i & 31u))) & 1u;
    let carry = rest.y >> 31u;
    rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
    let fits = carry == 1u || !ult64(rest, b);
    quotient = vec2<u32>((quotient.x << 1u) | select(0u, 1u, fits), (quotient.y << 1u) | (quotient.x >> 31u));
    if (fits) { rest = sub64(rest, b); }
  }
  return vec4<u32>(quotient, rest);
}""",
    "udiv64": "fn udiv64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divide64(a, b).xy; }",
    "urem64": "fn urem64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divide64(a, b).zw; }",
    "abs64": "fn abs64(a: vec2<u32>) -> vec2<u32> { return select(a, neg64(a), (a.y >> 31u) == 1u); }",
    "sdiv64": """fn sdiv64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = divide64(abs64(a), abs64(b)).xy;
  return select(q, neg64(q), ((a.y ^ b.y) >> 31u) == 1u);
}""",
    "srem64": """fn srem64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = divide64(abs64(a), abs64(b)).zw;
  return select(r, neg64(r), (a.y >> 31u) == 1u);
}""",
    "shl64": """fn shl64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n > 63u) { return vec2<u32>(0u, 0u); }
  if (n > 31u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}""",
    "shr64": """fn shr64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n > 63u) { return vec2<u32>(0u, 0u); }
  if (n > 31u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}""",
    "sar64": """fn sar64(a: vec2<u32>, n: u32) -> vec2<u32> {
  let fill = select(0u, 0xffffffffu, (a.y >> 31u) == 1u);
  if (n == 0u) { return a; }
  if (n > 63u) { return vec2<u32>(fill, fill); }
  if (n > 31u) { return vec2<u32>(bitcast<u32>(bitcast<i32>(a.y) >> (n - 32u)), fill); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(bitcast<i32>(a.y) >> n));
}""",
    "u32tof32": """fn u32tof32(x: u32) -> f32 {
  return select(f32(i32(x)), f32(i32((x >> 1u) | (x & 1u))) * 2.0, x > 0x7fffffffu);
}""",
    "u64tof32": """fn u64tof32(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return u32tof32(a.x); }
  let lead = countLeadingZeros(a.y);
  let top = shl64(a, lead);
  let sticky = select(0u, 1u, top.x != 0u);
  return ldexp(u32tof32(top.y | sticky), 32 - i32(lead));
}""",
    "s64tof32": """fn s64tof32(a: vec2<u32>) -> f32 {
  let size = u64tof32(abs64(a));
  return select(size, -size, (a.y >> 31u) == 1u);
}""",
    "f32tou64": """fn f32tou64(x: f32) -> vec2<u32> {
  if (is_nan(x) || x < 1.0) { return vec2<u32>(0u, 0u); }
  if (x >= 18446744073709551616.0) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  let bits = bitcast<u32>(x);
  let exponent = i32((bits >> 23u) & 0xffu) - 150;
  let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (exponent < 0) { return shr64(mantissa, u32(-exponent)); }
  return shl64(mantissa, u32(exponent));
}""",
    "f32tos64": """fn f32tos64(x: f32) -> vec2<u32> {
  if (x >= 9223372036854775808.0) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0) { return vec2<u32>(0u, 0x80000000u); }
  let size = f32tou64(abs(x));
  return select(size, neg64(size), x < 0.0);
}""",
    "from_f16": """fn from_f16(bits: u32) -> f32 {
  let sign = (bits & 0x8000u) << 16u;
  let size = bits & 0x7fffu;
  if (size < 0x400u) { return bitcast<f32>(sign | bitcast<u32>(f32(size) * 5.9604644775390625e-8)); }
  let wide = select((size << 13u) + 0x38000000u, (size << 13u) | 0x7f800000u, size >= 0x7c00u);
  return bitcast<f32>(sign | wide);
}""",
    "to_f16": """fn to_f16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }
  if (size < 0x38800000u) {
    return sign | u32(round(bitcast<f32>(size) * 16777216.0));
  }
  let rounded = size + 0xfffu + ((size >> 13u) & 1u);
  return sign | ((rounded - 0x38000000u) >> 13u);
}""",
    "from_bf16": "fn from_bf16(bits: u32) -> f32 { return bitcast<f32>((bits & 0xffffu) << 16u); }",
    "to_bf16": """fn to_bf16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if (is_nan(x)) { return 0x7fc0u | ((bits >> 16u) & 0x8000u); }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}""",
    "widen_float": """fn widen_float(size: u32, mantissa: u32, bias: u32) -> f32 {
  if (size < (1u << mantissa)) { return f32(size) * bitcast<f32>((128u - bias - mantissa) << 23u); }
  return bitcast<f32>((size << (23u - mantissa)) + ((127u - bias) << 23u));
}""",
    "narrow_float": """fn narrow_float(size: u32, mantissa: u32, bias: u32) -> u32 {
  if (size < ((128u - bias) << 23u)) {
    return u32(round(bitcast<f32>(size) * bitcast<f32>((126u + bias + mantissa) << 23u)));
  }
  let shift = 23u - mantissa;
  let rounded = size + ((1u << (shift - 1u)) - 1u) + ((size >> shift) & 1u);
  return (rounded - ((127u - bias) << 23u)) >> shift;
}""",
    "signed_float": """fn signed_float(size: f32, bits: u32) -> f32 {
  return bitcast<f32>(bitcast<u32>(size) | ((bits & 0x80u) << 24u));
}""",
    "from_f8e4m3fn": """fn from_f8e4m3fn(bits: u32) -> f32 {
  let size = bits & 0x7fu;
  return signed_float(select(widen_float(size, 3u, 7u), bitcast<f32>(nan_bits), size == 0x7fu), bits);
}""",
    "to_f8e4m3fn": """fn to_f8e4m3fn(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return ((bits >> 24u) & 0x80u) | min(narrow_float(bits & 0x7fffffffu, 3u, 7u), 0x7fu);
}""",
    "from_f8e4m3fnuz": """fn from_f8e4m3fnuz(bits: u32) -> f32 {
  if ((bits & 0xffu) == 0x80u) { return bitcast<f32>(nan_bits); }
  return signed_float(widen_float(bits & 0x7fu, 3u, 8u), bits);
}""",
    "to_f8e4m3fnuz": """fn to_f8e4m3fnuz(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let size = narrow_float(bits & 0x7fffffffu, 3u, 8u);
  return select(((bits >> 24u) & 0x80u) | size, select(0x80u, 0u, size == 0u), size == 0u || size > 0x7fu);
}""",
    "from_f8e5m2": """fn from_f8e5m2(bits: u32) -> f32 {
  let size = bits & 0x7fu;
  let edge = select(bitcast<f32>(inf_bits), bitcast<f32>(nan_bits), size > 0x7cu);
  return signed_float(select(widen_float(size, 2u, 15u), edge, size >= 0x7cu), bits);
}""",
    "to_f8e5m2": """fn to_f8e5m2(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let size = select(min(narrow_float(bits & 0x7fffffffu, 2u, 15u), 0x7cu), 0x7eu, is_nan(x));
  return ((bits >> 24u) & 0x80u) | size;
}""",
    "from_f8e5m2fnuz": """fn from_f8e5m2fnuz(bits: u32) -> f32 {
  if ((bits & 0xffu) == 0x80u) { return bitcast<f32>(nan_bits); }
  return signed_float(widen_float(bits & 0x7fu, 2u, 16u), bits);
}""",
    "to_f8e5m2fnuz": """fn to_f8e5m2fnuz(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let size = narrow_float(bits & 0x7fffffffu, 2u, 16u);
  return select(((bits >> 24u) & 0x80u) | size, select(0x80u, 0u, size == 0u), size == 0u || size > 0x7fu);
}""",
    "from_f8e8m0": """fn from_f8e8m0(bits: u32) -> f32 {
  let exponent = bits & 0xffu;
  return bitcast<f32>(select(select(exponent << 23u, nan_bits, exponent == 0xffu), 0x400000u, exponent == 0u));
}""",
    "to_f8e8m0": """fn to_f8e8m0(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if (bits == 0u || bits >= 0x7f800000u) { return 0xffu; }
  return select((bits + 0x400000u) >> 23u, select(0u, 1u, bits >= 0x600000u), bits < 0x800000u);
}""",
    "from_f4e2m1": """fn from_f4e2m1(bits: u32) -> f32 {
  return signed_float(widen_float(bits & 7u, 1u, 1u), (bits & 8u) << 4u);
}""",
    "to_f4e2m1": """fn to_f4e2m1(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 28u) & 8u;
  return select(sign | min(narrow_float(bits & 0x7fffffffu, 1u, 1u), 7u), 8u - sign, is_nan(x));
}""",
}

_FUNCTIONS |= DOUBLE_FLOAT

_NAME = re.compile(r"\b(" + "|".join(_FUNCTIONS) + r")\b")


def need(texts: Iterable[str]) -> list[str]:
    """The functions that texts call, and those that these call, in the order of the table."""
    found: set[str] = set()
    pending = list(texts)
    while pending:
        for name in _NAME.findall(pending.pop()):
            if name not in found:
                found.add(name)
                pending.append(_FUNCTIONS[name])
    return [text for name, text in _FUNCTIONS.items() if name in found]
