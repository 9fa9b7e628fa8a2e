"""WGSL functions for the operators that WGSL lacks or that drivers get wrong; a kernel gets those that it uses.

Each takes and gives the types that its name says. `need` lists functions that a text calls. Values that are not finite
come from a private variable, since compilers reject or fold constant expressions that produce them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    "tanh_f32": """fn tanh_f32(x: f32) -> f32 {
  let t = tanh(clamp(x, -10.0, 10.0));
  return select(select(t, x, abs(x) < 0.0002), x, is_nan(x));
}""",
    "exp_f32": """fn exp_f32(x: f32) -> f32 {
  let y = select(exp(clamp(x, -104.0, 88.7)), exp(min(x, 88.72)), x > 88.7);
  return select(select(select(y, 0.0, x < -103.9), bitcast<f32>(inf_bits), x > 88.7229), x, is_nan(x));
}""",
    "log_f32": """fn log_f32(x: f32) -> f32 {
  let nan = bitcast<f32>(nan_bits);
  let edge = select(select(nan, -bitcast<f32>(inf_bits), x == 0.0), x, is_nan(x) || x > 3.0e38);
  return select(edge, log(x), x > 0.0 && x <= 3.0e38);
}""",
    "sqrt_f32": """fn sqrt_f32(x: f32) -> f32 {
  let edge = select(x, bitcast<f32>(nan_bits), x < 0.0);
  return select(edge, sqrt(x), x > 0.0 && x <= 3.4e38);
}""",
    "pow_f32": """fn pow_f32(a: f32, b: f32) -> f32 {
  if (b == 0.0 || a == 1.0) { return 1.0; }
  if (is_nan(a) || is_nan(b)) { return bitcast<f32>(nan_bits); }
  if (b == 1.0) { return a; }
  if (b == 2.0) { return a * a; }
  if (b == 3.0) { return a * a * a; }
  if (b == -1.0) { return 1.0 / a; }
  if (b == 0.5) { return sqrt_f32(abs(a) + select(0.0, bitcast<f32>(nan_bits), a < 0.0)); }
  let whole = floor(b) == b;
  let odd = whole && abs(b) < 16777216.0 && floor(b * 0.5) * 2.0 != b;
  if (a == 0.0) {
    let negative = odd && bitcast<u32>(a) == 0x80000000u;
    let size = select(0.0, bitcast<f32>(inf_bits), b < 0.0);
    return select(size, -size, negative);
  }
  if (a < 0.0 && !whole) { return bitcast<f32>(nan_bits); }
  let size = exp_f32(b * log_f32(abs(a)));
  let direct = pow(abs(a), b);
  let best = select(size, direct, size > 1e-30 && size < 1e30);
  return select(best, -best, a < 0.0 && odd);
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
    r = 1.0 - exp(max(fma(r, t, -t), -80.0));
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
    "reduced_turns": """fn reduced_turns(x: f32) -> f32 {
  let k = round(x * 0.15915494);
  return fma(k, 1.7484555e-7, fma(k, -6.2831855, x));
}""",
    "sin_f32": "fn sin_f32(x: f32) -> f32 { return sin(reduced_turns(x)); }",
    "cos_f32": "fn cos_f32(x: f32) -> f32 { return cos(reduced_turns(x)); }",
    "tan_f32": "fn tan_f32(x: f32) -> f32 { let r = reduced_turns(x); return sin(r) / cos(r); }",
    "sinh_f32": """fn sinh_f32(x: f32) -> f32 {
  let s = x * x;
  let small = x * (1.0 + s * (0.16666667 + s * (0.008333334 + s * 0.0001984127)));
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
  let small = x * (1.0 + s * (-0.16666667 + s * (0.075 - s * 0.044642857)));
  let large = select(log_f32(t + sqrt(s + 1.0)), log_f32(t) + 0.6931472, t > 1.0e9);
  return select(select(large, -large, x < 0.0), small, t < 0.25);
}""",
    "acosh_f32": """fn acosh_f32(x: f32) -> f32 {
  let t = x - 1.0;
  return select(log_f32(1.0 + t + sqrt_f32(t * (x + 1.0))), log_f32(x) + 0.6931472, x > 1.0e9);
}""",
    "atanh_f32": """fn atanh_f32(x: f32) -> f32 {
  let s = x * x;
  let small = x * (1.0 + s * (0.33333334 + s * (0.2 + s * 0.14285715)));
  return select(0.5 * log_f32((1.0 + x) / (1.0 - x)), small, abs(x) < 0.2);
}""",
    "asin_f32": """fn asin_f32(x: f32) -> f32 {
  let r = atan2(x, sqrt_f32((1.0 - x) * (1.0 + x)));
  return select(r, bitcast<f32>(nan_bits), abs(x) > 1.0 || is_nan(x));
}""",
    "acos_f32": """fn acos_f32(x: f32) -> f32 {
  let r = 2.0 * atan2(sqrt_f32(1.0 - x), sqrt_f32(1.0 + x));
  return select(r, bitcast<f32>(nan_bits), abs(x) > 1.0 || is_nan(x));
}""",
    "rem_f32": """fn rem_f32(a: f32, b: f32) -> f32 {
  let r = a - b * trunc(a / b);
  let fixed = select(r, r - sign(r) * abs(b), abs(r) >= abs(b));
  return select(fixed, 0.0 * a, (fixed < 0.0) != (a < 0.0) && abs(fixed) < 1e-6 * abs(b));
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
