#!/bin/bash
# What one NVIDIA GPU can teach in ten minutes, without network: what perfgate otherwise only read in sources.
#
#   bash benchmarks/one_gpu.sh [PART…]      in perfgate's root; a python3 with PyTorch, as root for the sandbox's part
#
# Each part is tried alone, has a time limit of its own and ends with ✔ or ✖; one that fails hides no other. perfgate's
# libraries may lie as wheels in .whl/ and bubblewrap as packages in .deb/ (pip download, apt-get download elsewhere).
# Exit status: 0 when all parts worked.
set -u
cd "$(dirname "$0")/.." || exit 2
place=$(mktemp -d "${TMPDIR:-/tmp}/one-gpu.XXXXXX")
trap 'rm -rf "$place"' EXIT
python=${PYTHON:-python3}
failed=()

prepare() {
  for package in .deb/*.deb; do [ -e "$package" ] && dpkg -x "$package" / 2>/dev/null; done
  if compgen -G '.whl/*.whl' >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --target "$place/site" .whl/*.whl || echo "wheels: not installed"
  fi
  export PYTHONPATH="$place/site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
}

part() { # NAME SECONDS COMMAND…
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  printf '\n=== %s\n' "$name"
  timeout "$limit" "$@" 2>&1
  code=$?
  if [ $code -eq 0 ]; then
    echo "✔ $name: $((SECONDS - begin)) s"
  else
    failed+=("$name")
    echo "✖ $name: status $code after $((SECONDS - begin)) s$([ $code -eq 124 ] && echo ' (its time was up)')"
  fi
}

devices() { find /dev -maxdepth 1 \( -name 'nvidia*' -o -name gdrdrv -o -name infiniband \) | grep .; }

host() {
  cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo "no yama"
  ulimit -l
  for tool in nvcc ninja g++ numactl bwrap cargo nvidia-modprobe; do command -v $tool || echo "$tool: not here"; done
  ls /run/nvidia-* 2>/dev/null
  "$python" -c 'import os, sysconfig; p = sysconfig.get_paths()["include"]; print(p, os.path.exists(p + "/Python.h"))'
}

driver() {
  nvidia-smi --query-gpu=name,driver_version,persistence_mode,mig.mode.current,pcie.link.gen.current,pcie.link.gen.max,memory.used,memory.reserved --format=csv,noheader
}

shim() { # of several architectures the box's own is left
  local arch=${ARCH:-9.0} kernel=$place/kernel
  echo '__global__ void kernel() {}' >"$kernel.cu"
  PERFGATE_NVCC=$(command -v nvcc) PERFGATE_CUDA_ARCH=$arch "$python" perfgate/build/nvcc_shim.py -c "$kernel.cu" -o "$kernel.o" \
    -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a &&
    cuobjdump --list-elf "$kernel.o"
}

wanted=("$@")
export -f devices host driver shim
export place python
prepare
part devices-before 10 bash -c devices
part driver 20 bash -c driver
part host 20 bash -c host
part nvml 60 "$python" benchmarks/one_gpu.py nvml
part devices-in-sandbox 90 "$python" benchmarks/one_gpu.py cuda
part devices-after 10 bash -c devices
part probe-timers 150 "$python" benchmarks/probe_cuda.py
part canary 90 "$python" benchmarks/one_gpu.py canary
part all-reduce 60 "$python" benchmarks/one_gpu.py all-reduce
part inductor-in-sandbox 120 "$python" benchmarks/one_gpu.py inductor
part nvcc-shim 60 bash -c shim

printf '\n'
if [ ${#failed[@]} -gt 0 ]; then
  echo "✖ ${#failed[@]} parts: ${failed[*]}"
  exit 1
fi
echo "✔ all parts"
