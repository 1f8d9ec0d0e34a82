# SPDX-License-Identifier: Apache-2.0

# CTRT_CUDA
#
# Adds the options --with-cuda[=DIR|no] and --with-cuda-arch=LIST. Looks for nvcc, which compiles the kernels of the
# cuda plugin. The build needs nothing else of CUDA, because the plugin loads the driver and its libraries at run time.
#
# Sets NVCC, NVCC_ARCH (the -gencode options), ctrt_nvcc (the path of nvcc, or "no"), ctrt_nvcc_why (a text for the
# summary), and CUDA_HEADERS (the compiler option for the toolkit's headers, which only a test uses).
AC_DEFUN([CTRT_CUDA], [
    AC_ARG_WITH([cuda],
        [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [folder of the CUDA toolkit, or no @<:@searched in PATH, CUDA_HOME, /usr/local/cuda@:>@])],
        [], [with_cuda=auto])
    AC_ARG_WITH([cuda-arch],
        [AS_HELP_STRING([--with-cuda-arch=LIST], [compute capabilities for which kernels are compiled @<:@75,80,86,89,90,100,120@:>@])],
        [], [with_cuda_arch=75,80,86,89,90,100,120])
    AC_ARG_VAR([NVCC], [compiler of CUDA C++])
    # The kernels use ldmatrix and mma.m16n8k8, which compute capability 7.5 introduced.
    for ctrt_arch in $(echo "$with_cuda_arch" | tr ',' ' '); do
        AS_CASE([$ctrt_arch], [*[[!0-9]]*], [AC_MSG_ERROR([--with-cuda-arch requires numbers such as 80,90, not "$ctrt_arch"])])
        AS_IF([test "$ctrt_arch" -lt 75], [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: the kernels require compute capability 7.5 (75) or newer, not $ctrt_arch])])
    done
    ctrt_nvcc=no ctrt_nvcc_why=
    AS_CASE([$with_cuda],
        [no], [ctrt_nvcc_why="disabled by --with-cuda=no"],
        [auto|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin])],
        [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
    AS_IF([test "x$with_cuda" != xno && test -z "$NVCC"], [
        ctrt_nvcc_why="nvcc was not found (set the folder of the CUDA toolkit with --with-cuda=DIR)"
        AS_CASE([$with_cuda], [auto], [], [AC_MSG_ERROR([--with-cuda was given, but $ctrt_nvcc_why])])
    ])
    AS_IF([test "x$with_cuda" != xno && test -n "$NVCC"], [
        # Omit architectures that this version of nvcc does not support. For the last supported architecture, also
        # include PTX, which the driver compiles for newer GPUs.
        AC_MSG_CHECKING([for which architectures $NVCC compiles])
        echo 'extern "C" __global__ void nothing(int *x) { *x = 1; }' >conftest.cu
        NVCC_ARCH= ctrt_nvcc_list= ctrt_nvcc_last=
        for ctrt_arch in $(echo "$with_cuda_arch" | tr ',' ' '); do
            AS_IF(["$NVCC" -arch=sm_$ctrt_arch -cubin -o conftest.cubin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1], [
                NVCC_ARCH="$NVCC_ARCH -gencode arch=compute_$ctrt_arch,code=sm_$ctrt_arch"
                ctrt_nvcc_list="$ctrt_nvcc_list${ctrt_nvcc_list:+,}$ctrt_arch"
                ctrt_nvcc_last=$ctrt_arch
            ])
        done
        # Compress for size: the kernels are so similar that fat binaries shrink to less than a tenth. Fat binaries
        # compressed in this way require a driver for CUDA 12.4 or later; all fat binaries of nvcc 13 do.
        AS_IF(["$NVCC" --version | grep -q "release 1@<:@3-9@:>@" && "$NVCC" --compress-mode=size -fatbin -o conftest.cubin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
            [NVCC_ARCH="$NVCC_ARCH --compress-mode=size"])
        rm -f conftest.cu conftest.cubin
        AC_MSG_RESULT([${ctrt_nvcc_list:-none}])
        AS_IF([test -n "$ctrt_nvcc_list"], [
            NVCC_ARCH="$NVCC_ARCH -gencode arch=compute_$ctrt_nvcc_last,code=compute_$ctrt_nvcc_last"
            ctrt_nvcc=$NVCC
            ctrt_nvcc_why="$NVCC, for $ctrt_nvcc_list"
        ], [ctrt_nvcc_why="$NVCC compiles for none of $with_cuda_arch"])
    ])
    CUDA_HEADERS=
    for ctrt_dir in "$with_cuda" "${NVCC%/bin/nvcc}" "$CUDA_HOME" /usr/local/cuda; do
        AS_IF([test -z "$CUDA_HEADERS" && test -f "$ctrt_dir/include/cuda.h"], [CUDA_HEADERS="-isystem $ctrt_dir/include"])
    done
    AC_SUBST([CUDA_HEADERS])
    AC_SUBST([NVCC_ARCH])
])
