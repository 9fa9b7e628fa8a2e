#!/usr/bin/env bash
# Prepare .venv and a Vulkan driver. usage: setup.sh [--tests]
# --tests also wants both software drivers that the suites run on: lavapipe and SwiftShader.
set -euo pipefail
cd "$(dirname "$0")/.."

want_tests=false
[ "${1:-}" = "--tests" ] && want_tests=true

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        command -v "$candidate" >/dev/null 2>&1 || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { printf '%s' "$candidate"; return; }
    done
    say "Python 3.11 or newer was not found. Install it, or name it: PYTHON=/path/to/python3 make …"
    return 1
}

prepare_venv() {
    local stamp python
    stamp=".venv/ready-$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)"
    [ -e "$stamp" ] && return
    python="$(find_python)"
    say "Preparing .venv (a minute or two, once) …"
    [ -x .venv/bin/python ] || "$python" -m venv .venv || {
        say "Python could not make a virtual environment; on Debian: apt-get install python3-venv"
        return 1
    }
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[verify,dev]'
    rm -f .venv/ready-*
    touch "$stamp"
}

has_any() { compgen -G "$1" >/dev/null; }
has_vulkan() { [ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] || has_any '/usr/share/vulkan/icd.d/*.json' || has_any '/etc/vulkan/icd.d/*.json'; }
has_lavapipe() { has_any '/usr/share/vulkan/icd.d/lvp_icd*.json'; }
has_swiftshader() { .venv/bin/python scripts/drivers.py swiftshader >/dev/null 2>&1; }

# install PACKAGE PURPOSE: through apt where it can, else say what is missing.
install() {
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo -n)
    if command -v apt-get >/dev/null 2>&1 && "${sudo[@]}" true 2>/dev/null; then
        say "Installing $1 ($2) …"
        "${sudo[@]}" apt-get update -qq || true
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null && return
    fi
    say "Please install $2: on Debian or Ubuntu \`sudo apt-get install $1\`, elsewhere your system's package of the same."
    return 1
}

prepare_venv
if $want_tests; then
    has_lavapipe || install mesa-vulkan-drivers "Mesa's software Vulkan driver, lavapipe"
    has_swiftshader || install chromium "Chromium, whose SwiftShader is the second software driver"
elif [ "$(uname -s)" = Linux ]; then
    has_vulkan || install mesa-vulkan-drivers "a Vulkan driver"
fi
