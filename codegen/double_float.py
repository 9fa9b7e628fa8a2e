"""WGSL functions of double-floats: float64 as an unevaluated sum of two f32, `vec2<f32>` with the larger part first.

A pair (x, y) is normalised: x is the f32 nearest to x + y. It holds 48 bits and more, in f32's range of exponents. It
all rests on two facts about f32: the error of a sum is a float, and so is the error of a product. `sum_exact` and
`product_exact` find them with operations whose order a compiler must not change, yet WGSL lets it reorder, cancel
(s - a with s = a + b becomes b) and contract (a * b + c into a fused one). `hide` stands in the way: it sends a value
through an integer minimum that changes no number, which no compiler can know. (Without it lavapipe's remainders have 7
digits.) `fma` would give the error of a product at once, but it may round twice, and on lavapipe and SwiftShader it
does; so the factors are split by masks into halves whose products are exact.

Values that are not finite have a second part of 0, and are what f32 gives for the first parts.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def parts(value: Fraction, count: int) -> list[float]:
    """A number as a sum of f32, the largest first."""
    found = []
    for _ in range(count):
        part = float(np.float32(float(value)))
        found.append(part)
        value -= Fraction(part)
    return found


def literal(value: float) -> str:
    """A finite f32 as WGSL."""
    text = repr(value)
    return f"({text}f)" if value < 0 else f"{text}f"


def pair(value: Fraction) -> str:
    """A number as a constant pair."""
    return f"vec2<f32>({', '.join(literal(p) for p in parts(value, 2))})"


def _factorial(n: int) -> Fraction:
    result = Fraction(1)
    for k in range(2, n + 1):
        result /= k
    return result


_LN2 = Fraction("0.693147180559945309417232121458176568075500134360255254120680")
_HALF_PI = Fraction("1.570796326794896619231321691639751442098584699687552910487472")
_TWO_OVER_ROOT_PI = Fraction("1.128379167095512573896158903121545171688101258657997713688171")


def _horner(variable: str, coefficients: list[Fraction]) -> str:
    """A polynomial in f32, the constant term first."""
    text = literal(parts(coefficients[-1], 1)[0])
    for c in reversed(coefficients[:-1]):
        text = f"({literal(parts(c, 1)[0])} + {variable} * {text})"
    return text


def _series(name: str, variable: str, coefficients: list[Fraction], exact: int) -> str:
    """Statements that set `name` to a polynomial of a pair, whose first `exact` coefficients need both parts."""
    tail = _horner(f"{variable}.x", coefficients[exact:])
    lines = [f"  var {name} = add_f32x2({pair(coefficients[exact - 1])}, scaled_by({variable}, {tail}));"]
    lines += [
        f"  {name} = add_f32x2({pair(c)}, mul_f32x2({variable}, {name}));" for c in reversed(coefficients[: exact - 1])
    ]
    return "\n".join(lines)


def _sines(first: int, count: int) -> list[Fraction]:
    return [_factorial(first + 2 * k) * (-1) ** (k + 1) for k in range(count)]


DOUBLE_FLOAT: dict[str, str] = {
    **{f"ln2_{k}": f"const ln2_{k} = {literal(p)};" for k, p in enumerate(parts(_LN2, 3))},
    **{f"half_pi_{k}": f"const half_pi_{k} = {literal(p)};" for k, p in enumerate(parts(_HALF_PI, 4))},
    "half_pi": f"const half_pi = {pair(_HALF_PI)};",
    "one_f32x2": "const one_f32x2 = vec2<f32>(1.0, 0.0);",
    "hide": "fn hide(x: f32) -> f32 { return bitcast<f32>(min(bitcast<u32>(x), 0xfffffffeu)); }",
    "is_special": "fn is_special(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u; }",
    "exponent_of": "fn exponent_of(x: f32) -> i32 { return i32((bitcast<u32>(x) >> 23u) & 0xffu) - 127; }",
    "sum_exact": """fn sum_exact(a: f32, b: f32) -> vec2<f32> {
  let s = hide(a + b);
  let t = hide(s - a);
  let u = hide(a - hide(s - t));
  return vec2<f32>(s, hide(u + hide(b - t)));
}""",
    "product_exact": """fn product_exact(a: f32, b: f32) -> vec2<f32> {
  let p = hide(a * b);
  let ah = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
  let bh = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
  let al = hide(a - ah);
  let bl = hide(b - bh);
  let first = hide(ah * bh - p);
  let second = hide(first + ah * bl);
  let third = hide(second + al * bh);
  return vec2<f32>(p, hide(third + al * bl));
}""",
    "join": """fn join(s: f32, e: f32) -> vec2<f32> {
  let r = select(hide(s + e), s, e == 0.0 || is_special(s));
  return vec2<f32>(r, select(e - hide(r - s), 0.0, is_special(r)));
}""",
    "scale_f32x2": """fn scale_f32x2(a: vec2<f32>, n: i32) -> vec2<f32> {
  let x = scale_f32(a.x, n);
  return vec2<f32>(x, select(scale_f32(a.y, n), 0.0, is_special(x)));
}""",
    "add_f32x2": """fn add_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let s = sum_exact(a.x, b.x);
  let t = sum_exact(a.y, b.y);
  let v = join(s.x, s.y + t.x);
  return join(v.x, t.y + v.y);
}""",
    "sub_f32x2": "fn sub_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> { return add_f32x2(a, -b); }",
    "mul_f32x2": """fn mul_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let p = product_exact(a.x, b.x);
  return join(p.x, p.y + (a.x * b.y + a.y * b.x));
}""",
    "scaled_by": """fn scaled_by(a: vec2<f32>, b: f32) -> vec2<f32> {
  let p = product_exact(a.x, b);
  return join(p.x, p.y + a.y * b);
}""",
    "div_f32x2": """fn div_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  if (is_inf(a.x) && !is_special(b.x)) { return select(a, -a, (bitcast<u32>(b.x) >> 31u) == 1u); }
  if (a.x == 0.0 || b.x == 0.0 || is_special(a.x) || is_special(b.x)) { return vec2<f32>(a.x / b.x, 0.0); }
  let m = exponent_of(a.x);
  let n = exponent_of(b.x);
  let d = scale_f32x2(b, -n);
  var r = scale_f32x2(a, -m);
  let first = r.x / d.x;
  r = sub_f32x2(r, scaled_by(d, first));
  let second = r.x / d.x;
  r = sub_f32x2(r, scaled_by(d, second));
  let q = add_f32x2(join(first, second), vec2<f32>(r.x / d.x, 0.0));
  return scale_f32x2(q, m - n);
}""",
    "sqrt_f32x2": """fn sqrt_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (a.x <= 0.0 || is_special(a.x)) { return vec2<f32>(sqrt_f32(a.x), 0.0); }
  let n = exponent_of(a.x) >> 1u;
  let m = scale_f32x2(a, -2 * n);
  let s = sqrt(m.x);
  var y = join(s, 0.5 * sub_f32x2(m, product_exact(s, s)).x / s);
  y = add_f32x2(y, vec2<f32>(0.5 * sub_f32x2(m, mul_f32x2(y, y)).x / s, 0.0));
  return scale_f32x2(y, n);
}""",
    "neg_f32x2": "fn neg_f32x2(a: vec2<f32>) -> vec2<f32> { return -a; }",
    "abs_f32x2": """fn abs_f32x2(a: vec2<f32>) -> vec2<f32> {
  return select(a, -a, (bitcast<u32>(a.x) >> 31u) == 1u);
}""",
    "sign_f32x2": "fn sign_f32x2(a: vec2<f32>) -> vec2<f32> { return vec2<f32>(sign_f32(a.x), 0.0); }",
    "eq_f32x2": """fn eq_f32x2(a: vec2<f32>, b: vec2<f32>) -> bool {
  return eq_f32(a.x, b.x) && a.y == b.y;
}""",
    "lt_f32x2": """fn lt_f32x2(a: vec2<f32>, b: vec2<f32>) -> bool {
  return lt_f32(a.x, b.x) || (eq_f32(a.x, b.x) && a.y < b.y);
}""",
    "le_f32x2": """fn le_f32x2(a: vec2<f32>, b: vec2<f32>) -> bool {
  return lt_f32(a.x, b.x) || (eq_f32(a.x, b.x) && a.y <= b.y);
}""",
    "max_f32x2": """fn max_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  return select(a, b, !is_nan(a.x) && (is_nan(b.x) || lt_f32x2(a, b)));
}""",
    "min_f32x2": """fn min_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  return select(a, b, !is_nan(a.x) && (is_nan(b.x) || lt_f32x2(b, a)));
}""",
    "floor_f32x2": """fn floor_f32x2(a: vec2<f32>) -> vec2<f32> {
  let x = floor(a.x);
  return select(vec2<f32>(x, 0.0), join(a.x, floor(a.y)), x == a.x || is_special(a.x));
}""",
    "ceil_f32x2": "fn ceil_f32x2(a: vec2<f32>) -> vec2<f32> { return -floor_f32x2(-a); }",
    "trunc_f32x2": """fn trunc_f32x2(a: vec2<f32>) -> vec2<f32> {
  return select(floor_f32x2(a), -floor_f32x2(-a), (bitcast<u32>(a.x) >> 31u) == 1u);
}""",
    "round_f32x2": """fn round_f32x2(a: vec2<f32>) -> vec2<f32> {
  if ((bitcast<u32>(a.x) >> 31u) == 1u) { return -round_size(-a); }
  return round_size(a);
}""",
    "round_size": """fn round_size(a: vec2<f32>) -> vec2<f32> {
  if (is_special(a.x)) { return a; }
  let down = floor_f32x2(a);
  let rest = sub_f32x2(a, down);
  let half = floor_f32x2(down * 0.5);
  let odd = !eq_f32x2(half * 2.0, down);
  let up = rest.x > 0.5 || (rest.x == 0.5 && (rest.y > 0.0 || (rest.y == 0.0 && odd)));
  return select(down, add_f32x2(down, one_f32x2), up);
}""",
    "floordiv_f32x2": """fn floordiv_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  return floor_f32x2(div_f32x2(a, b));
}""",
    "rem_f32x2": """fn rem_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  if (is_special(a.x) || is_nan(b.x) || b.x == 0.0) { return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }
  if (is_inf(b.x)) { return a; }
  let d = abs_f32x2(b);
  var r = abs_f32x2(a);
  for (var i = 0; i < 24 && le_f32x2(d, r); i++) {
    let q = floor(min(r.x / d.x * 0.999999, 1e30));
    let k = max(q, 1.0);
    let low = product_exact(d.y, k);
    r = sub_f32x2(sub_f32x2(r, product_exact(d.x, k)), low);
  }
  return select(r, -r, (bitcast<u32>(a.x) >> 31u) == 1u);
}""",
    "mod_f32x2": """fn mod_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let r = rem_f32x2(a, b);
  let negative = (bitcast<u32>(b.x) >> 31u) == 1u;
  if (r.x == 0.0) { return vec2<f32>(select(0.0, -0.0, negative), 0.0); }
  return select(r, add_f32x2(r, b), (r.x < 0.0) != negative);
}""",
    "expm1_series": f"""fn expm1_series(a: vec2<f32>) -> vec2<f32> {{
  let r = a * 0.0625;
{_series("p", "r", [_factorial(n) for n in range(2, 9)], 3)}
  p = add_f32x2(r, mul_f32x2(mul_f32x2(r, r), p));
  for (var i = 0; i < 4; i++) {{ p = add_f32x2(2.0 * p, mul_f32x2(p, p)); }}
  return p;
}}""",
    "without_ln2": """fn without_ln2(a: vec2<f32>, k: f32) -> vec2<f32> {
  let r = sub_f32x2(sub_f32x2(a, product_exact(k, ln2_0)), product_exact(k, ln2_1));
  return sub_f32x2(r, vec2<f32>(k * ln2_2, 0.0));
}""",
    "exp_f32x2": """fn exp_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (is_nan(a.x)) { return a; }
  if (a.x > 89.0) { return vec2<f32>(bitcast<f32>(inf_bits), 0.0); }
  if (a.x < -104.0) { return vec2<f32>(0.0, 0.0); }
  let k = round(a.x * 1.44269504);
  return scale_f32x2(add_f32x2(one_f32x2, expm1_series(without_ln2(a, k))), i32(k));
}""",
    "expm1_f32x2": """fn expm1_f32x2(a: vec2<f32>) -> vec2<f32> {
  let k = round(clamp(a.x, -60.0, 80.0) * 1.44269504);
  let p = expm1_series(without_ln2(a, k));
  return add_f32x2(scale_f32x2(p, i32(k)), sum_exact(scale_f32(1.0, i32(k)), -1.0));
}""",
    "atanh_series": f"""fn atanh_series(a: vec2<f32>) -> vec2<f32> {{
  let s = mul_f32x2(a, a);
{_series("p", "s", [Fraction(1, 2 * n + 1) for n in range(1, 13)], 5)}
  return add_f32x2(a, mul_f32x2(mul_f32x2(a, s), p));
}}""",
    "log_f32x2": """fn log_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (!(a.x > 0.0) || is_special(a.x)) { return vec2<f32>(log_f32(a.x), 0.0); }
  let n = (bitcast<i32>(bitcast<u32>(a.x) - 0x3f3504f3u) >> 23u);
  let m = scale_f32x2(a, -n);
  let half = atanh_series(div_f32x2(sub_f32x2(m, one_f32x2), add_f32x2(m, one_f32x2)));
  let k = f32(n);
  let whole = add_f32x2(product_exact(k, ln2_0), product_exact(k, ln2_1));
  return add_f32x2(whole, 2.0 * half);
}""",
    "log1p_f32x2": """fn log1p_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (abs(a.x) < 0.4) { return 2.0 * atanh_series(div_f32x2(a, add_f32x2(a, vec2<f32>(2.0, 0.0)))); }
  return log_f32x2(add_f32x2(one_f32x2, a));
}""",
    "pow_f32x2": """fn pow_f32x2(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  if (b.x == 0.0 || eq_f32x2(a, one_f32x2)) { return one_f32x2; }
  if (is_nan(a.x) || is_nan(b.x)) { return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }
  let whole = eq_f32x2(floor_f32x2(b), b);
  let odd = whole && !eq_f32x2(floor_f32x2(b * 0.5) * 2.0, b);
  var base = abs_f32x2(a);
  var size = one_f32x2;
  if (is_inf(b.x)) {
    let grows = lt_f32x2(one_f32x2, base) == (b.x > 0.0);
    return vec2<f32>(select(select(0.0, bitcast<f32>(inf_bits), grows), 1.0, eq_f32x2(base, one_f32x2)), 0.0);
  }
  if (base.x == 0.0 || is_inf(base.x)) {
    size = vec2<f32>(select(0.0, bitcast<f32>(inf_bits), is_inf(base.x) == (b.x > 0.0)), 0.0);
    return select(size, -size, odd && (bitcast<u32>(a.x) >> 31u) == 1u);
  }
  if (a.x < 0.0 && !whole) { return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }
  if (eq_f32x2(b, vec2<f32>(0.5, 0.0))) { return sqrt_f32x2(a); }
  if (whole && abs(b.x) <= 64.0) {
    if (b.x < 0.0) { base = div_f32x2(one_f32x2, base); }
    for (var n = u32(abs(b.x)); n != 0u; n = n >> 1u) {
      if ((n & 1u) == 1u) { size = mul_f32x2(size, base); }
      base = mul_f32x2(base, base);
    }
  } else {
    size = exp_f32x2(mul_f32x2(b, log_f32x2(base)));
  }
  return select(size, -size, odd && a.x < 0.0);
}""",
    "sine_series": f"""fn sine_series(a: vec2<f32>) -> vec2<f32> {{
  let s = mul_f32x2(a, a);
{_series("p", "s", _sines(3, 9), 5)}
  return add_f32x2(a, mul_f32x2(mul_f32x2(a, s), p));
}}""",
    "cosine_series": f"""fn cosine_series(a: vec2<f32>) -> vec2<f32> {{
  let s = mul_f32x2(a, a);
{_series("p", "s", _sines(2, 9), 5)}
  return add_f32x2(one_f32x2, mul_f32x2(s, p));
}}""",
    "turned_f32x2": """fn turned_f32x2(a: vec2<f32>, quarter: i32) -> vec2<f32> {
  if (is_special(a.x)) { return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }
  var r = a;
  var turns = quarter;
  for (var i = 0; i < 6; i++) {
    let k = round(r.x * 0.636619772);
    if (k == 0.0) { break; }
    r = sub_f32x2(sub_f32x2(r, product_exact(k, half_pi_0)), product_exact(k, half_pi_1));
    r = sub_f32x2(sub_f32x2(r, product_exact(k, half_pi_2)), vec2<f32>(k * half_pi_3, 0.0));
    turns += i32(k - 4.0 * floor(k * 0.25));
  }
  var value = sine_series(r);
  if ((turns & 1) == 1) { value = cosine_series(r); }
  return select(value, -value, (turns & 2) == 2);
}""",
    "sin_f32x2": """fn sin_f32x2(a: vec2<f32>) -> vec2<f32> {
  return select(turned_f32x2(a, 0), a, a.x == 0.0);
}""",
    "cos_f32x2": "fn cos_f32x2(a: vec2<f32>) -> vec2<f32> { return turned_f32x2(a, 1); }",
    "tan_f32x2": "fn tan_f32x2(a: vec2<f32>) -> vec2<f32> { return div_f32x2(sin_f32x2(a), cos_f32x2(a)); }",
    "atan2_f32x2": """fn atan2_f32x2(y: vec2<f32>, x: vec2<f32>) -> vec2<f32> {
  if (is_nan(x.x) || is_nan(y.x)) { return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }
  let ay = abs_f32x2(y);
  let ax = abs_f32x2(x);
  let steep = lt_f32x2(ax, ay);
  var t = select(one_f32x2, vec2<f32>(0.0, 0.0), ay.x == 0.0);
  if (!eq_f32x2(ax, ay)) { t = div_f32x2(select(ay, ax, steep), select(ax, ay, steep)); }
  var z = t;
  if (t.x > 1e-30) {
    let guess = vec2<f32>(atan_f32(t.x), 0.0);
    let s = sine_series(guess);
    let c = cosine_series(guess);
    z = add_f32x2(guess, vec2<f32>(sub_f32x2(mul_f32x2(t, c), s).x / (c.x + t.x * s.x), 0.0));
  }
  if (steep) { z = sub_f32x2(half_pi, z); }
  if ((bitcast<u32>(x.x) >> 31u) == 1u) { z = sub_f32x2(2.0 * half_pi, z); }
  return select(z, -z, (bitcast<u32>(y.x) >> 31u) == 1u);
}""",
    "atan_f32x2": "fn atan_f32x2(a: vec2<f32>) -> vec2<f32> { return atan2_f32x2(a, one_f32x2); }",
    "cosine_of_sine": """fn cosine_of_sine(a: vec2<f32>) -> vec2<f32> {
  return sqrt_f32x2(mul_f32x2(sub_f32x2(one_f32x2, a), add_f32x2(one_f32x2, a)));
}""",
    "asin_f32x2": "fn asin_f32x2(a: vec2<f32>) -> vec2<f32> { return atan2_f32x2(a, cosine_of_sine(a)); }",
    "acos_f32x2": "fn acos_f32x2(a: vec2<f32>) -> vec2<f32> { return atan2_f32x2(cosine_of_sine(a), a); }",
    "sinh_f32x2": """fn sinh_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (a.x == 0.0 || is_special(a.x)) { return a; }
  let t = abs_f32x2(a);
  let h = exp_f32x2(0.5 * t);
  var size = mul_f32x2(0.5 * h, h);
  if (t.x < 20.0) {
    let p = expm1_f32x2(t);
    size = 0.5 * add_f32x2(p, div_f32x2(p, add_f32x2(one_f32x2, p)));
  }
  return select(size, -size, a.x < 0.0);
}""",
    "cosh_f32x2": """fn cosh_f32x2(a: vec2<f32>) -> vec2<f32> {
  let h = exp_f32x2(0.5 * abs_f32x2(a));
  let large = mul_f32x2(0.5 * h, h);
  if (abs(a.x) < 20.0) { return add_f32x2(large, div_f32x2(vec2<f32>(0.25, 0.0), large)); }
  return large;
}""",
    "tanh_f32x2": """fn tanh_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (a.x == 0.0 || is_nan(a.x)) { return a; }
  let p = expm1_f32x2(2.0 * abs_f32x2(a));
  let inside = div_f32x2(p, add_f32x2(p, vec2<f32>(2.0, 0.0)));
  let size = select(inside, one_f32x2, abs(a.x) > 20.0);
  return select(size, -size, a.x < 0.0);
}""",
    "asinh_f32x2": """fn asinh_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (a.x == 0.0 || is_special(a.x)) { return a; }
  let t = abs_f32x2(a);
  var size = vec2<f32>(0.0, 0.0);
  if (t.x > 1e9) {
    size = add_f32x2(log_f32x2(t), vec2<f32>(ln2_0, ln2_1));
  } else {
    let s = mul_f32x2(t, t);
    let root = sqrt_f32x2(add_f32x2(one_f32x2, s));
    size = log1p_f32x2(add_f32x2(t, div_f32x2(s, add_f32x2(one_f32x2, root))));
  }
  return select(size, -size, a.x < 0.0);
}""",
    "acosh_f32x2": """fn acosh_f32x2(a: vec2<f32>) -> vec2<f32> {
  if (a.x > 1e9) { return add_f32x2(log_f32x2(a), vec2<f32>(ln2_0, ln2_1)); }
  let t = sub_f32x2(a, one_f32x2);
  return log1p_f32x2(add_f32x2(t, sqrt_f32x2(mul_f32x2(t, add_f32x2(a, one_f32x2)))));
}""",
    "atanh_f32x2": """fn atanh_f32x2(a: vec2<f32>) -> vec2<f32> {
  let t = abs_f32x2(a);
  let size = 0.5 * log1p_f32x2(div_f32x2(2.0 * t, sub_f32x2(one_f32x2, t)));
  return select(size, -size, (bitcast<u32>(a.x) >> 31u) == 1u);
}""",
    "erf_f32x2": f"""fn erf_f32x2(a: vec2<f32>) -> vec2<f32> {{
  if (a.x == 0.0 || is_nan(a.x)) {{ return a; }}
  let t = abs_f32x2(a);
  var size = one_f32x2;
  if (t.x < 6.0) {{
    let s = mul_f32x2(t, t);
    var term = t;
    var sum = t;
    for (var n = 1.5; n < 200.0 && term.x > 1e-16 * sum.x; n += 1.0) {{
      term = div_f32x2(mul_f32x2(term, s), vec2<f32>(n, 0.0));
      sum = add_f32x2(sum, term);
    }}
    size = mul_f32x2({pair(_TWO_OVER_ROOT_PI)}, mul_f32x2(sum, exp_f32x2(-s)));
  }}
  return select(size, -size, a.x < 0.0);
}}""",
    "isnan_f32x2": "fn isnan_f32x2(a: vec2<f32>) -> bool { return is_nan(a.x); }",
    "isinf_f32x2": "fn isinf_f32x2(a: vec2<f32>) -> bool { return is_inf(a.x); }",
    "f32tof32x2": "fn f32tof32x2(x: f32) -> vec2<f32> { return vec2<f32>(x, 0.0); }",
    "f32x2tof32": "fn f32x2tof32(a: vec2<f32>) -> f32 { return a.x; }",
    "f32x2toodd": """fn f32x2toodd(a: vec2<f32>) -> f32 {
  if (a.y == 0.0) { return a.x; }
  let down = (a.y < 0.0) != (a.x < 0.0);
  return bitcast<f32>((bitcast<u32>(a.x) - select(0u, 1u, down)) | 1u);
}""",
    "s32tof32x2": """fn s32tof32x2(x: i32) -> vec2<f32> {
  return sum_exact(f32(x >> 16u) * 65536.0, f32(x & 0xffff));
}""",
    "u32tof32x2": """fn u32tof32x2(x: u32) -> vec2<f32> {
  return sum_exact(f32(x >> 16u) * 65536.0, f32(x & 0xffffu));
}""",
    "u64tof32x2": """fn u64tof32x2(x: vec2<u32>) -> vec2<f32> {
  return add_f32x2(u32tof32x2(x.y) * 4294967296.0, u32tof32x2(x.x));
}""",
    "s64tof32x2": """fn s64tof32x2(x: vec2<u32>) -> vec2<f32> {
  let size = u64tof32x2(abs64(x));
  return select(size, -size, (x.y >> 31u) == 1u);
}""",
    "f32x2tou64": """fn f32x2tou64(a: vec2<f32>) -> vec2<u32> {
  if (is_nan(a.x) || a.x < 0.0) { return vec2<u32>(0u, 0u); }
  let t = trunc_f32x2(a);
  if (t.x >= 18446744073709551616.0) {
    let full = t.x > 18446744073709551616.0 || t.y >= 0.0;
    return select(neg64(f32tou64(-t.y)), vec2<u32>(0xffffffffu, 0xffffffffu), full);
  }
  let x = f32tou64(t.x);
  let y = f32tou64(abs(t.y));
  return select(add64(x, y), sub64(x, y), t.y < 0.0);
}""",
    "f32x2tos64": """fn f32x2tos64(a: vec2<f32>) -> vec2<u32> {
  let size = f32x2tou64(abs_f32x2(a));
  let negative = a.x < 0.0;
  let over = (size.y >> 31u) == 1u;
  if (over) { return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative); }
  return select(size, neg64(size), negative);
}""",
    "f32x2tos32": """fn f32x2tos32(a: vec2<f32>) -> i32 {
  let size = f32x2tou64(abs_f32x2(a));
  let negative = a.x < 0.0;
  let over = size.y != 0u || size.x > 0x7fffffffu;
  let largest = bitcast<i32>(select(0x7fffffffu, 0x80000000u, negative));
  return select(bitcast<i32>(select(size.x, 0u - size.x, negative)), largest, over);
}""",
    "f32x2tou32": """fn f32x2tou32(a: vec2<f32>) -> u32 {
  let size = f32x2tou64(a);
  return select(size.x, 0xffffffffu, size.y != 0u);
}""",
    "from_f64": """fn from_f64(bits: vec2<u32>) -> vec2<f32> {
  let sign = bits.y & 0x80000000u;
  let e = (bits.y >> 20u) & 0x7ffu;
  let rest = bits.x & 0x1fffffffu;
  let odd = (bits.x >> 29u) & 1u;
  let up = rest + odd > 0x10000000u;
  let top = ((e - 896u) << 23u) + (((bits.y & 0xfffffu) << 3u) | (bits.x >> 29u)) + select(0u, 1u, up);
  let edge = e == 0x7ffu && ((bits.y & 0xfffffu) | bits.x) != 0u;
  if (e > 1150u || (e > 896u && top > 0x7f7fffffu)) {
    return vec2<f32>(bitcast<f32>(sign | 0x7f800000u | select(0u, 0x400000u, edge)), 0.0);
  }
  if (e < 897u) { return vec2<f32>(bitcast<f32>(sign), 0.0); }
  let low = scale_f32(f32(bitcast<i32>(rest - select(0u, 0x20000000u, up))), i32(e) - 1075);
  return vec2<f32>(bitcast<f32>(sign | top), select(low, -low, sign != 0u));
}""",
    "to_f64": """fn to_f64(a: vec2<f32>) -> vec2<u32> {
  let x = bitcast<u32>(a.x);
  let y = bitcast<u32>(a.y);
  let sign = x & 0x80000000u;
  let e = (x >> 23u) & 0xffu;
  if (e == 0u) { return vec2<u32>(0u, sign); }
  if (e == 0xffu) { return vec2<u32>(0u, sign | select(0x7ff00000u, 0x7ff80000u, (x & 0x7fffffu) != 0u)); }
  var size = vec2<u32>(0u, ((x & 0x7fffffu) | 0x800000u) << 7u);
  let f = (y >> 23u) & 0xffu;
  if (f != 0u) {
    let part = vec2<u32>((y & 0x7fffffu) | 0x800000u, 0u);
    let shift = 39 - i32(e) + i32(f);
    var low = shl64(part, u32(max(shift, 0)));
    if (shift < 0) {
      low = shr64(part, u32(-shift));
      low.x |= select(1u, 0u, all(shl64(low, u32(-shift)) == part));
    }
    size = select(add64(size, low), sub64(size, low), ((x ^ y) >> 31u) == 1u);
  }
  let lead = countLeadingZeros(size.y);
  size = shl64(size, lead);
  let rest = size.x & 0x7ffu;
  let whole = shr64(size, 11u);
  let up = rest + (whole.x & 1u) > 0x400u;
  let rounded = add64(whole, vec2<u32>(select(0u, 1u, up), 0u));
  return vec2<u32>(rounded.x, sign | (rounded.y + ((e + 896u - lead) << 20u)));
}""",
}
