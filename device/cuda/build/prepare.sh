#!/bin/sh
# Prepares a folder with what `go build -tags cuda` needs where neither the CUDA
# toolkit nor a driver is installed:
#
#	include -> the folder that holds cuda.h
#	lib/libcuda.so, a library to link with that has every name and does nothing
#
# The header is that of the toolkit if there is one ($CUDA_HOME or
# /usr/local/cuda), else that of a Python wheel, which is fetched once. The
# library must never be run with: on a machine with a GPU the driver brings its own.
#
# usage: prepare.sh FOLDER
set -eu

wheel=nvidia-cuda-runtime-cu12==12.9.79

fail() {
	echo "prepare.sh: $*" >&2
	exit 1
}

test $# -eq 1 || fail "usage: prepare.sh FOLDER"
mkdir -p "$1"
cd "$1"

headers=
for folder in ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include "$PWD/wheel/nvidia/cuda_runtime/include"; do
	if test -f "$folder/cuda.h"; then
		headers=$folder
		break
	fi
done

if test -z "$headers"; then
	python=$(command -v python3) || fail "no cuda.h in \$CUDA_HOME/include or /usr/local/cuda/include, and no python3 to fetch it with: install either the CUDA toolkit or python3 and pip"
	"$python" -m pip --version >/dev/null 2>&1 || fail "no cuda.h in \$CUDA_HOME/include or /usr/local/cuda/include, and python3 has no pip to fetch it with: install python3-pip or the CUDA toolkit"
	echo "fetching cuda.h: $wheel"
	rm -rf wheel
	"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--platform manylinux2014_x86_64 --dest wheel "$wheel" || fail "pip could not fetch $wheel"
	"$python" -m zipfile -e wheel/*.whl wheel
	rm wheel/*.whl
	headers=$PWD/wheel/nvidia/cuda_runtime/include
	test -f "$headers/cuda.h" || fail "$wheel has no nvidia/cuda_runtime/include/cuda.h"
fi

if test "$(readlink include || true)" != "$headers"; then
	ln -sfn "$headers" include
	rm -f lib/libcuda.so
fi

# Newer versions of a function have names of their own (_v2, _v3), which the
# header mentions in macros; one that is missing would be called at address 0.
if test lib/libcuda.so -nt include/cuda.h && test lib/libcuda.so -nt "$0"; then
	exit 0
fi
cc=${CC:-gcc}
command -v "$cc" >/dev/null || fail "no C compiler: install gcc, or name one in \$CC"
mkdir -p lib
grep -oE '\bcu[A-Z][A-Za-z0-9_]*' include/cuda.h | sort -u |
	awk '{ print "int " $1 "(void) { return 801; } // not supported" }' >lib/libcuda.c
"$cc" -w -O0 -shared -fPIC -Wl,-soname,libcuda.so.1 -o lib/libcuda.so lib/libcuda.c
