# SPDX-License-Identifier: Apache-2.0
#
# The cpu plugin opens oneDNN and a CBLAS with dlopen at first use and does not link with them, so that the plugin loads
# quickly. configure determines the file names to open. For oneDNN it also needs the headers, because the API differs
# between 2.x and 3.x.

# CTRT_SONAME_OF(VARIABLE, LIBS, SYMBOL)
# Links a program that calls SYMBOL with LIBS, and sets VARIABLE to the library's soname, which the program records as
# NEEDED. Sets VARIABLE to the empty string if the program does not link.
AC_DEFUN([CTRT_SONAME_OF], [
    $1=
    ctrt_save_LIBS=$LIBS
    LIBS="$2 $LIBS"
    AC_LINK_IFELSE([AC_LANG_CALL([], [$3])], [
        $1=$(LC_ALL=C ${READELF-readelf} -d conftest$EXEEXT 2>/dev/null |
             grep NEEDED | grep -o 'lib@<:@A-Za-z0-9_.+-@:>@*\.so@<:@0-9.@:>@*' |
             grep -v -e '^libc\.' -e '^libm\.' -e '^libdl\.' -e '^ld-' |
             sed -n 1p)
    ])
    LIBS=$ctrt_save_LIBS
])

# CTRT_ONEDNN
# Defines HAVE_ONEDNN, CTRT_ONEDNN_MAJOR and CTRT_ONEDNN_SONAME; substitutes ONEDNN_CPPFLAGS.
AC_DEFUN([CTRT_ONEDNN], [
    AC_ARG_WITH([onednn],
        [AS_HELP_STRING([--with-onednn@<:@=DIR@:>@],
            [matrix products and convolutions of the cpu plugin through oneDNN 2 or 3 @<:@auto@:>@])],
        [], [with_onednn=auto])
    ONEDNN_CPPFLAGS=
    ctrt_onednn_ldflags=
    ctrt_onednn=no
    AS_CASE([$with_onednn],
        [no], [ctrt_onednn_why="disabled by --without-onednn"],
        [yes|auto], [
            m4_ifdef([PKG_CHECK_EXISTS], [AS_IF([test -n "$PKG_CONFIG"], [PKG_CHECK_EXISTS([dnnl], [
                ONEDNN_CPPFLAGS=$($PKG_CONFIG --cflags dnnl 2>/dev/null)
                ctrt_onednn_ldflags=$($PKG_CONFIG --libs-only-L dnnl 2>/dev/null)
            ])])])
        ],
        [
            ONEDNN_CPPFLAGS="-I$with_onednn/include"
            ctrt_onednn_ldflags="-L$with_onednn/lib"
            AS_IF([test -d "$with_onednn/lib64" && test ! -e "$with_onednn/lib/libdnnl.so"],
                [ctrt_onednn_ldflags="-L$with_onednn/lib64"])
        ])
    AS_IF([test "x$with_onednn" != xno], [
        AC_MSG_CHECKING([for oneDNN])
        ctrt_save_CPPFLAGS=$CPPFLAGS
        ctrt_save_LDFLAGS=$LDFLAGS
        CPPFLAGS="$CPPFLAGS $ONEDNN_CPPFLAGS"
        LDFLAGS="$LDFLAGS $ctrt_onednn_ldflags"
        AC_COMPUTE_INT([ctrt_onednn_major], [DNNL_VERSION_MAJOR], [@%:@include <oneapi/dnnl/dnnl_version.h>],
            [ctrt_onednn_major=0])
        CTRT_SONAME_OF([ctrt_onednn_soname], [-ldnnl], [dnnl_version])
        CPPFLAGS=$ctrt_save_CPPFLAGS
        LDFLAGS=$ctrt_save_LDFLAGS
        AS_CASE([$ctrt_onednn_major,$ctrt_onednn_soname],
            [0,*],    [ctrt_onednn_why="oneapi/dnnl/dnnl_version.h not found (Debian, Ubuntu: libdnnl-dev)"],
            [*,],     [ctrt_onednn_why="-ldnnl does not link"],
            [2,*|3,*], [ctrt_onednn=yes],
            [ctrt_onednn_why="major version $ctrt_onednn_major is neither 2 nor 3"])
        AS_IF([test $ctrt_onednn = yes], [
            # Open a library outside the loader's search path by its full path.
            AS_CASE([$with_onednn], [/*], [
                ctrt_dir=$(echo "$ctrt_onednn_ldflags" | sed 's/^-L//')
                AS_IF([test -e "$ctrt_dir/$ctrt_onednn_soname"], [ctrt_onednn_soname=$ctrt_dir/$ctrt_onednn_soname])
            ])
            ctrt_onednn_why="$ctrt_onednn_major.x, opened at first use as $ctrt_onednn_soname"
            AC_DEFINE([HAVE_ONEDNN], [1], [oneDNN's headers are installed])
            AC_DEFINE_UNQUOTED([CTRT_ONEDNN_MAJOR], [$ctrt_onednn_major], [major version of oneDNN's headers: 2 or 3])
            AC_DEFINE_UNQUOTED([CTRT_ONEDNN_SONAME], ["$ctrt_onednn_soname"], [file name of oneDNN for dlopen])
        ], [ONEDNN_CPPFLAGS=])
        AC_MSG_RESULT([$ctrt_onednn ($ctrt_onednn_why)])
        AS_IF([test $ctrt_onednn = no && test "x$with_onednn" != xauto],
            [AC_MSG_ERROR([--with-onednn was given, but $ctrt_onednn_why])])
    ])
    AC_SUBST([ONEDNN_CPPFLAGS])
    AM_CONDITIONAL([HAVE_ONEDNN], [test $ctrt_onednn = yes])
])

# CTRT_CBLAS
# Defines HAVE_CBLAS and CTRT_CBLAS_SONAME. No header is needed, because the ABI of CBLAS is fixed.
AC_DEFUN([CTRT_CBLAS], [
    AC_ARG_WITH([blas],
        [AS_HELP_STRING([--with-blas@<:@=LIB@:>@],
            [CBLAS that the cpu plugin uses where oneDNN is absent: a library's name (openblas) or the file to open
             @<:@auto: openblas, blis, cblas, blas@:>@])],
        [], [with_blas=auto])
    ctrt_cblas_soname=
    AC_MSG_CHECKING([for a CBLAS])
    AS_CASE([$with_blas],
        [no], [ctrt_cblas_why="disabled by --without-blas"],
        [*.so|*.so.*], [ctrt_cblas_soname=$with_blas],
        [
            AS_CASE([$with_blas], [yes|auto], [ctrt_try="openblas blis cblas blas"],
                [ctrt_try=$with_blas])
            for ctrt_lib in $ctrt_try; do
                CTRT_SONAME_OF([ctrt_cblas_soname], [-l$ctrt_lib], [cblas_sgemm])
                test -z "$ctrt_cblas_soname" || break
            done
            ctrt_cblas_why="cblas_sgemm found in none of: $ctrt_try (Debian, Ubuntu: libopenblas-dev)"
        ])
    AS_IF([test -n "$ctrt_cblas_soname"], [
        ctrt_cblas=yes
        ctrt_cblas_why="opened at first use as $ctrt_cblas_soname"
        AC_DEFINE([HAVE_CBLAS], [1], [a CBLAS was found])
        AC_DEFINE_UNQUOTED([CTRT_CBLAS_SONAME], ["$ctrt_cblas_soname"], [file name of the CBLAS for dlopen])
    ], [ctrt_cblas=no])
    AC_MSG_RESULT([$ctrt_cblas ($ctrt_cblas_why)])
    AS_CASE([$ctrt_cblas,$with_blas], [no,auto|no,no], [],
        [no,*], [AC_MSG_ERROR([--with-blas was given, but $ctrt_cblas_why])])
])
