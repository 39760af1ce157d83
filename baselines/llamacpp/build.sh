#!/usr/bin/env bash
# Builds llama.cpp's benchmark tools from the source package of llama-cpp-python (which ships
# llama.cpp under vendor/), with clang. Needs only a Python package registry and, for the compiler,
# a Debian-like system. Writes below $LLAMACPP_BUILD (default: baselines/llamacpp/build, ignored).
#   CC, CXX   a clang of version 16 or newer (default: the newest one found)
#   JOBS      parallel compile jobs (default: the CPUs)
#   ISA       native (default), or avx512 or avx2: the most that llama.cpp may use, for comparisons at
#             that level; its programs go to bin-$ISA beside bin
set -euo pipefail

VERSION=0.3.36
SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
TARGETS=(llama-bench llama-perplexity llama-quantize llama-imatrix llama-server llama-batched-bench)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${LLAMACPP_BUILD:-$here/build}
python=${PYTHON:-python3}
jobs=${JOBS:-$(nproc)}
isa=${ISA:-native}
case $isa in
  native) bin=$build/bin isa_options=(-DGGML_NATIVE=ON) ;;
  avx512)
    bin=$build/bin-avx512
    isa_options=(-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON)
    ;;
  avx2) bin=$build/bin-avx2 isa_options=(-DGGML_NATIVE=OFF -DGGML_AVX2=ON) ;;
  *)
    echo "build.sh: ISA=$isa is not native, avx512 or avx2." >&2
    exit 2
    ;;
esac
[ "$isa" = native ] || TARGETS=(llama-bench llama-batched-bench)
mkdir -p "$build"

newest_clang() {
  local v
  for v in 21 20 19 18 17 16; do
    if command -v "clang++-$v" >/dev/null && command -v "clang-$v" >/dev/null; then
      echo "clang-$v"
      return
    fi
  done
  if command -v clang++ >/dev/null; then
    v=$(clang++ -dumpversion | cut -d. -f1)
    if [ "$v" -ge 16 ]; then echo clang; fi
  fi
}

# The first argument whose packages can be installed, where this is root on a Debian-like system.
install_one_of() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  apt-get update -qq
  local packages
  for packages in "$@"; do
    # shellcheck disable=SC2086  # several packages in one word
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages; then return 0; fi
  done
  return 1
}

has_openmp() {
  echo 'int main() { return 0; }' | "$CXX" -x c++ -fopenmp -o /dev/null - 2>/dev/null
}

if [ -z "${CC:-}" ]; then
  CC=$(newest_clang)
  if [ -z "$CC" ]; then
    install_one_of "clang-19 libomp-19-dev" "clang-18 libomp-18-dev" "clang-17 libomp-17-dev" \
      "clang-16 libomp-16-dev" || true
    CC=$(newest_clang)
  fi
  if [ -z "$CC" ]; then
    echo "build.sh: no clang >= 16 found. Install one (Debian: apt-get install clang-19), or set CC and CXX." >&2
    exit 1
  fi
fi
CXX=${CXX:-${CC/clang/clang++}}
major=$("$CXX" -dumpversion | cut -d. -f1)
if ! has_openmp; then install_one_of "libomp-$major-dev" || true; fi
openmp=ON
if ! has_openmp; then
  openmp=OFF
  echo "build.sh: clang $major has no OpenMP here (Debian: libomp-$major-dev); ggml's own threads it is," >&2
  echo "which lose speed when anything else runs." >&2
fi

for tool in cmake ninja; do
  command -v "$tool" >/dev/null || {
    [ -x "$build/tools/bin/$tool" ] || { "$python" -m venv "$build/tools" && "$build/tools/bin/pip" install -q cmake ninja; }
    export PATH="$build/tools/bin:$PATH"
  }
done

source_package=$build/llama_cpp_python-$VERSION.tar.gz
if ! echo "$SHA256  $source_package" | sha256sum --check --status 2>/dev/null; then
  "$python" -m pip download --no-deps --no-binary llama-cpp-python -d "$build" "llama-cpp-python==$VERSION"
  echo "$SHA256  $source_package" | sha256sum --check --status || {
    echo "build.sh: $source_package does not have the expected sha256 $SHA256" >&2
    exit 1
  }
fi
source=$build/llama_cpp_python-$VERSION
if [ ! -f "$source/vendor/llama.cpp/CMakeLists.txt" ] || [ ! -f "$source/.complete" ]; then
  rm -rf "$source"
  tar -xzf "$source_package" -C "$build" "llama_cpp_python-$VERSION/vendor/llama.cpp" \
    "llama_cpp_python-$VERSION/.git/modules/vendor/llama.cpp/HEAD"
  touch "$source/.complete"
fi
commit=$(cut -c1-9 "$source/.git/modules/vendor/llama.cpp/HEAD")

# native: every instruction set of this CPU, AMX included. Static: the tools can be copied.
options=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF "${isa_options[@]}" -DGGML_OPENMP=$openmp
  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
  -DLLAMA_BUILD_COMMIT="$commit"
)
cmake -G Ninja -S "$source/vendor/llama.cpp" -B "$build/cmake-$isa" \
  -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" "${options[@]}"
cmake --build "$build/cmake-$isa" -j "$jobs" --target "${TARGETS[@]}"

mkdir -p "$bin"
for target in "${TARGETS[@]}"; do
  # A program that is running cannot be written over, but it can be replaced.
  cp --remove-destination "$build/cmake-$isa/bin/$target" "$bin/"
done
# What was built, for the provenance of every comparison.
cat > "$bin/build.json" <<JSON
{"peer": "llama.cpp", "source": "llama-cpp-python==$VERSION", "sha256": "$SHA256", "commit": "$commit",
 "compiler": "$("$CXX" --version | head -1)", "options": "${options[*]}"}
JSON
echo "llama.cpp $commit is in $bin"
