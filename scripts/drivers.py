"""Find the software Vulkan drivers that the tests run on. usage: drivers.py lavapipe|swiftshader"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PATTERNS = {
    "lavapipe": ("/usr/share/vulkan/icd.d/lvp_icd*.json", "/etc/vulkan/icd.d/lvp_icd*.json"),
    "swiftshader": (
        "/usr/lib/chromium/vk_swiftshader_icd.json",
        "/usr/lib*/chromium*/vk_swiftshader_icd.json",
        "/opt/google/chrome*/vk_swiftshader_icd.json",
    ),
}


def find_driver(name: str) -> Path | None:
    """Return the manifest of the named driver, or None where it is not installed."""
    for pattern in PATTERNS[name]:
        found = sorted(Path("/").glob(pattern.lstrip("/")))
        if found:
            return found[0]
    return None


def driver_environment(name: str) -> dict[str, str]:
    """Return this process's environment with only the named driver visible to the Vulkan loader."""
    manifest = find_driver(name)
    if manifest is None:
        raise FileNotFoundError(f"No manifest of {name} was found; `scripts/setup.sh --tests` installs it.")
    environment = dict(os.environ)
    environment.pop("VK_ICD_FILENAMES", None)
    environment["VK_DRIVER_FILES"] = str(manifest)
    return environment


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in PATTERNS:
        print(__doc__, file=sys.stderr)
        return 2
    manifest = find_driver(sys.argv[1])
    if manifest is None:
        return 1
    print(manifest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
