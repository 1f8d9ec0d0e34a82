# SPDX-License-Identifier: Apache-2.0

# CTRT_COMPILE_FLAG(VARIABLE, FLAGS)
# Appends FLAGS to VARIABLE if the compiler accepts them without a warning.
AC_DEFUN([CTRT_COMPILE_FLAG], [
    AS_VAR_PUSHDEF([ctrt_cache], [ctrt_cv_flag_[]$2])
    AC_CACHE_CHECK([whether $CC accepts $2], [ctrt_cache], [
        ctrt_save_CFLAGS=$CFLAGS
        CFLAGS="$CFLAGS -Werror $2"
        AC_COMPILE_IFELSE([AC_LANG_PROGRAM()], [AS_VAR_SET([ctrt_cache], [yes])], [AS_VAR_SET([ctrt_cache], [no])])
        CFLAGS=$ctrt_save_CFLAGS
    ])
    AS_VAR_IF([ctrt_cache], [yes], [AS_VAR_APPEND([$1], [" $2"])])
    AS_VAR_POPDEF([ctrt_cache])
])

# CTRT_LINK_FLAG(VARIABLE, FLAGS)
# Appends FLAGS to VARIABLE if a program can be linked with them.
AC_DEFUN([CTRT_LINK_FLAG], [
    AS_VAR_PUSHDEF([ctrt_cache], [ctrt_cv_link_[]$2])
    AC_CACHE_CHECK([whether $CC links with $2], [ctrt_cache], [
        ctrt_save_LDFLAGS=$LDFLAGS
        LDFLAGS="$LDFLAGS $2"
        AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AS_VAR_SET([ctrt_cache], [yes])], [AS_VAR_SET([ctrt_cache], [no])])
        LDFLAGS=$ctrt_save_LDFLAGS
    ])
    AS_VAR_IF([ctrt_cache], [yes], [AS_VAR_APPEND([$1], [" $2"])])
    AS_VAR_POPDEF([ctrt_cache])
])

# CTRT_SANITIZE
# Adds the option --enable-sanitize=address,undefined|thread. Sets SANITIZE_FLAGS, the compiler flags for all targets.
AC_DEFUN([CTRT_SANITIZE], [
    AC_ARG_ENABLE([sanitize],
        [AS_HELP_STRING([--enable-sanitize=LIST],
            [build everything under sanitizers: address, undefined, address,undefined or thread @<:@no@:>@])],
        [], [enable_sanitize=no])
    SANITIZE_FLAGS=
    AS_CASE([$enable_sanitize],
        [no|''], [enable_sanitize=no],
        [yes], [AC_MSG_ERROR([--enable-sanitize requires a list, for example address,undefined])],
        [*thread*address*|*address*thread*], [AC_MSG_ERROR([the sanitizers address and thread cannot be combined])],
        [SANITIZE_FLAGS="-fsanitize=$enable_sanitize -fno-sanitize-recover=all -fno-omit-frame-pointer"])
    AS_IF([test -n "$SANITIZE_FLAGS"], [
        AC_MSG_CHECKING([whether programs run with -fsanitize=$enable_sanitize])
        ctrt_save_CFLAGS=$CFLAGS
        CFLAGS="$CFLAGS $SANITIZE_FLAGS"
        AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])], [
            AC_MSG_RESULT([no])
            AC_MSG_ERROR([$CC cannot build with -fsanitize=$enable_sanitize; is its sanitizer library installed?])
        ])
        CFLAGS=$ctrt_save_CFLAGS
    ])
    AC_SUBST([SANITIZE_FLAGS])
    AM_CONDITIONAL([SANITIZE], [test "x$enable_sanitize" != xno])
    AM_CONDITIONAL([SANITIZE_THREAD], [test "x$enable_sanitize" = xthread])
])

# CTRT_RELATIVE(VARIABLE, FROM, TO)
# Sets VARIABLE to the path of the folder TO relative to the folder FROM. Both are evaluated twice, because $libdir
# contains a reference to $exec_prefix, which contains a reference to $prefix.
AC_DEFUN([CTRT_RELATIVE], [
    eval "ctrt_from=$2"; eval "ctrt_from=$ctrt_from"
    eval "ctrt_to=$3"; eval "ctrt_to=$ctrt_to"
    $1=`$AWK -v from="$ctrt_from" -v to="$ctrt_to" 'BEGIN {
        n = split(from, a, "/"); m = split(to, b, "/")
        while (i < n && i < m && a@<:@i + 1@:>@ == b@<:@i + 1@:>@) i++
        for (j = i; j < n; j++) path = path "../"
        for (j = i + 1; j <= m; j++) path = path b@<:@j@:>@ "/"
        sub("/$", "", path); print path == "" ? "." : path
    }'`
])
