"""Where the command's own files are, and the environment that its programs need."""

import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDED = ROOT / "test" / "recorded"

# Ours alone: the library would warn of them as unknown variables of its own.
_BUILD = os.environ.pop("ZIPCCL_BUILD", None)
_LIBRARY = os.environ.pop("ZIPCCL_LIB", None)


class Missing(Exception):
    """A file that the command needs is not there; the text says which and what to do."""


def build_folder():
    return pathlib.Path(_BUILD or ROOT / "build").resolve()


def library(given=None):
    """libzipccl.so: as given, from ZIPCCL_LIB, from the build folder."""
    path = pathlib.Path(given or _LIBRARY or build_folder() / "interpose" / "libzipccl.so")
    if not path.is_file():
        raise Missing(f"no library at {path}: build it with scripts/demo, or name it with --lib or ZIPCCL_LIB")
    return path.resolve()


def program(name):
    """A test program or benchmark of the build."""
    for path in build_folder().glob(f"test/*/{name}"):
        return path
    raise Missing(f"no {name} in {build_folder()}: build it with scripts/test (programs for GPUs need nvcc), or name "
                  "another build folder with ZIPCCL_BUILD")


def writable(path):
    """Raises OSError if the file cannot be written; leaves everything as it was."""
    existed = os.path.exists(path)
    with open(path, "a", encoding="utf-8"):
        pass
    if not existed:
        os.remove(path)


def with_preload(path, environment=None):
    """LD_PRELOAD with `path` in front of what it already names, but once."""
    others = [name for name in (environment or os.environ).get("LD_PRELOAD", "").replace(":", " ").split()
              if pathlib.Path(name).name != "libzipccl.so"]
    return " ".join([str(path), *others])


def without_preload(environment=None):
    return with_preload("", environment).strip()


def nccl_environment(binary):
    """LD_LIBRARY_PATH that leads `binary` to PyTorch's NCCL, if the loader finds no other."""
    listing = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    if not any("libnccl.so" in line and "not found" in line for line in listing.splitlines()):
        return {}
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels.submodule_search_locations if wheels else ()) or ():
        candidate = pathlib.Path(folder) / "nccl" / "lib"
        if (candidate / "libnccl.so.2").is_file():
            others = os.environ.get("LD_LIBRARY_PATH")
            return {"LD_LIBRARY_PATH": f"{candidate}:{others}" if others else str(candidate)}
    raise Missing(f"{binary} needs libnccl.so.2: put its folder into LD_LIBRARY_PATH, or install PyTorch for "
                  f"{sys.executable}")
