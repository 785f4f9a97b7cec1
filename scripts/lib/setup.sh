# shellcheck shell=bash
# Sourced by demo, test and gpu_check: finds or installs what a build needs, and builds. Quiet where all is there.
# Sets ROOT, BUILD, MESON and ZIPCCL; everything else stays inside functions.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=$(realpath -m "${ZIPCCL_BUILD:-$ROOT/build}")
GIVEN_BUILD=${ZIPCCL_BUILD:-}
unset ZIPCCL_BUILD  # the library would warn of it as an unknown variable of its own
# shellcheck disable=SC2034  # for the scripts
ZIPCCL=(env "ZIPCCL_BUILD=$BUILD" "$ROOT/scripts/zipccl")
MESON=meson

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 2
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

has_header() { echo "#include <$1>" | ${CXX:-c++} -std=c++20 -E -x c++ - >/dev/null 2>&1; }

# Debian's and Ubuntu's packages; elsewhere Meson's wraps bring the libraries, and the compiler has to be there.
install_packages() {
  local missing=()
  command -v "${CXX:-c++}" >/dev/null || missing+=(g++)
  command -v ninja >/dev/null || missing+=(ninja-build)
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  command -v readelf >/dev/null || missing+=(binutils)
  command -v python3 >/dev/null || missing+=(python3)
  has_header asio.hpp || missing+=(libasio-dev)
  has_header spdlog/version.h || missing+=(libspdlog-dev)
  has_header fmt/core.h || missing+=(libfmt-dev)
  has_header nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
  has_header catch2/catch.hpp || has_header catch2/catch_all.hpp || missing+=(catch2)
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} -eq 0 ] && return
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null && root=(sudo) || root=(false)
  fi
  if command -v apt-get >/dev/null && [ "${root[*]}" != false ]; then
    say "installing ${missing[*]}"
    if ! "${root[@]}" apt-get update -qq ||
      ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >/dev/null; then
      say "apt-get failed; the build goes on without"
    fi
  else
    say "missing, and not installed (no apt-get, or no right to use it): ${missing[*]}"
  fi
}

# A virtual environment for what the system's packages do not have. Arguments: packages for pip.
venv_install() {
  if [ ! -x "$ROOT/.venv/bin/python3" ]; then
    python3 -m venv "$ROOT/.venv" ||
      die "cannot make a virtual environment: install python3-venv"
  fi
  "$ROOT/.venv/bin/python3" -m pip install -q "$@" || die "cannot install $* from PyPI"
}

# PYTHON: a python3 that has PyTorch, from PyPI if need be.
find_torch() {
  local candidate
  for candidate in python3 "$ROOT/.venv/bin/python3"; do
    if "$candidate" -c 'import numpy, torch; assert torch.cuda.is_available()' 2>/dev/null; then
      PYTHON=$candidate
      return
    fi
  done
  say "installing PyTorch into .venv (some gigabytes)"
  venv_install torch numpy
  PYTHON=$ROOT/.venv/bin/python3
}

# Lets PYTHON find Megatron core: as installed, in deps-megatron/ (for machines without network), or from PyPI. Fails if
# there is none.
find_megatron() {
  local folder path
  for folder in '' "$ROOT/deps-megatron" "$ROOT/.venv/megatron" install; do
    if [ "$folder" = install ]; then
      say "installing Megatron core into .venv/megatron"
      folder=$ROOT/.venv/megatron
      # Without what it depends on: PyTorch is there, and must not be replaced.
      "$PYTHON" -m pip install -q --retries 0 --no-deps --target "$folder" megatron-core packaging || return 1
    fi
    path=${PYTHONPATH:-}
    [ -z "$folder" ] || path=$folder${path:+:$path}
    if PYTHONPATH=$path "$PYTHON" -W ignore -c 'import megatron.core' 2>/dev/null; then
      export PYTHONPATH=$path
      return
    fi
  done
  return 1
}

meson_is_new_enough() {
  local version
  version=$("$1" --version 2>/dev/null) && printf '1.5\n%s\n' "$version" | sort -C -V
}

find_meson() {
  local candidate
  for candidate in meson "$ROOT/.venv/bin/meson"; do
    if meson_is_new_enough "$candidate"; then
      MESON=$candidate
      return
    fi
  done
  say "installing Meson into .venv"
  venv_install 'meson>=1.5'
  MESON=$ROOT/.venv/bin/meson
}

# CUDA's usual place, where it is not on the PATH.
find_nvcc() {
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    PATH=/usr/local/cuda/bin:$PATH
  fi
}

# For what only runs a build: one that was named is taken as it is, wherever it was made.
take_or_build() {
  if [ -n "$GIVEN_BUILD" ] && [ -f "$BUILD/interpose/libzipccl.so" ]; then
    say "using the build in $BUILD"
  else
    build
  fi
}

build() {
  install_packages
  find_meson
  find_nvcc
  local options=()
  command -v nvcc >/dev/null && options+=('-Dgpu_archs=8.0,9.0+PTX')
  mkdir -p "$BUILD"
  if [ ! -f "$BUILD/build.ninja" ]; then
    say "configuring $BUILD"
    "$MESON" setup "$BUILD" "$ROOT" "${options[@]}" >"$BUILD/setup.log" 2>&1 || {
      cat "$BUILD/setup.log"
      die "meson setup failed"
    }
  fi
  say "building $BUILD"
  "$MESON" compile -C "$BUILD" >"$BUILD/build.log" 2>&1 || {
    tail -n 60 "$BUILD/build.log"
    die "the build failed; all of its output is in $BUILD/build.log"
  }
}
