#!/usr/bin/env bash
# Installs what braid needs on Debian 12 from Debian's packages. Does nothing if everything is installed.
set -euo pipefail

usage() {
  cat <<'TXT'
usage: scripts/setup.sh [--dev] [--bench] [--reference] [--cuda] [--parquet]
  (none)    everything to build, test and run the demo
  --dev     also everything that .ci/run needs: clang 14, sanitizers, linters, launchers; and from PyPI, in build/python_tools,
            what builds and tests the Python module
  --parquet
            also Apache Arrow's libraries from PyPI (55 MB to fetch), which read Parquet; --dev has them, too
  --bench   also PyTorch, for the speed comparison (about 1 GB)
  --reference
            also Hugging Face transformers and PyTorch from PyPI, in build/reference (830 MB to fetch, 2 GB on disk): the test
            `transformers` trains the same models with them
  --cuda    also the headers of cudnn-frontend, for attention on GPUs, and faster kernels for Hopper, compiled with
            NVIDIA's packages from PyPI. Get CUDA and cuDNN themselves from NVIDIA.
Needs root or sudo, but only if a package is missing.
TXT
}

fail() {
  echo "setup.sh: $*" >&2
  exit 1
}

packages=(
  # tools
  build-essential g++ cmake ninja-build ccache mold pkg-config python3 git
  # CPack's Debian packages (scripts/build_deb.sh)
  file
  # libraries (docs/dependencies.md says why each)
  libfmt-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libsentencepiece-dev
  libpcre2-dev libutf8proc-dev libopenblas-pthread-dev libxxhash-dev zlib1g-dev libzstd-dev
  # tests and benchmarks
  libgtest-dev libgmock-dev libbenchmark-dev
  # the demo's text: the Jargon File and the Free On-line Dictionary of Computing
  dict-jargon dict-foldoc
)
dev_packages=(
  clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev llvm-14 cppcheck codespell chromium
  # launchers, and what makes hosts: scripts/check_launchers.py
  openmpi-bin slurmctld slurmd slurm-client munge iproute2
  # the Python module, and Arrow's libraries
  python3-dev python3-venv python3-pip
)
bench_packages=(python3-torch)
reference_packages=(python3-venv)
cuda_packages=(python3-pip)
with_cuda=no with_reference=no with_python=no with_parquet=no

for option in "$@"; do
  case $option in
    --dev) packages+=("${dev_packages[@]}"); with_python=yes with_parquet=yes ;;
    --parquet) packages+=(python3-pip); with_parquet=yes ;;
    --bench) packages+=("${bench_packages[@]}") ;;
    --reference) packages+=("${reference_packages[@]}"); with_reference=yes ;;
    --cuda) packages+=("${cuda_packages[@]}"); with_cuda=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option $option" ;;
  esac
done

command -v dpkg-query >/dev/null ||
  fail "this is not Debian; install the equivalents of: ${packages[*]} (docs/dependencies.md)"

finish() {
  echo "setup: $*"
  if [ $with_reference = yes ]; then
    "$(dirname "$0")/install_reference.sh"
  fi
  if [ $with_python = yes ]; then
    "$(dirname "$0")/install_python_tools.sh" || echo "setup: the Python module is not built and not tested"
  fi
  if [ $with_parquet = yes ]; then
    "$(dirname "$0")/fetch_arrow.sh" || echo "setup: Parquet is not read, and its tests are skipped"
  fi
  if [ $with_cuda = yes ]; then
    "$(dirname "$0")/fetch_cudnn_frontend.sh"
    "$(dirname "$0")/build_sm90_kernels.sh" || echo "setup: the extra Hopper kernels were not built; braid uses those of the libraries and its own"
  fi
  exit 0
}

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  finish "all ${#packages[@]} packages are installed"
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; } ||
    fail "needs root for: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=2 -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1
}
# The first error of apt: it names the host or the package, later ones only give advice.
reason() { grep '^E: ' "$log" | head -n 1; }

echo "setup: reading the package lists"
# With some sources out of reach apt still exits 0, and with stale lists the install may work: install decides.
apt update || echo "setup: package lists could not be renewed: $(reason)"
echo "setup: installing ${missing[*]}"
apt install -y --no-install-recommends "${missing[@]}" ||
  fail "apt-get install failed (network? Debian 12?): $(reason)"
finish "done"
