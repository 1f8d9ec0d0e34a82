# SPDX-License-Identifier: Apache-2.0

# CTRT_PLUGIN(NAME, HELP, [CHECK])
#
# Declares --enable-plugin-NAME=yes|no|auto (default auto) and decides whether the plugin is built.
# CHECK is shell code that looks for the plugin's dependencies. If one is missing, CHECK sets ctrt_missing to a short
# description; then "auto" does not build the plugin, and "yes" stops configure. Without CHECK, the plugin has no
# dependencies.
#
# Defines the automake conditional PLUGIN_<NAME> (upper case, - replaced by _), sets the shell variable
# ctrt_plugin_<name> to yes or no, and appends a line to ctrt_plugin_summary.
AC_DEFUN([CTRT_PLUGIN], [
    AC_ARG_ENABLE([plugin-$1],
        [AS_HELP_STRING([--enable-plugin-$1=yes|no|auto], [$2 @<:@auto@:>@])],
        [], [AS_VAR_SET([enable_plugin_[]m4_translit([$1], [-], [_])], [auto])])
    AS_VAR_COPY([ctrt_wanted], [enable_plugin_[]m4_translit([$1], [-], [_])])
    ctrt_missing=
    AS_CASE([$ctrt_wanted],
        [no], [],
        [yes|auto], [m4_default([$3], [:])],
        [AC_MSG_ERROR([--enable-plugin-$1 requires yes, no or auto, not "$ctrt_wanted"])])
    AS_IF([test "x$ctrt_wanted" = xno],
            [ctrt_built=no; ctrt_why="disabled by --enable-plugin-$1=no"],
          [test -z "$ctrt_missing"],
            [ctrt_built=yes; ctrt_why="$2"],
          [test "x$ctrt_wanted" = xyes],
            [AC_MSG_ERROR([--enable-plugin-$1=yes was given, but $ctrt_missing])],
            [ctrt_built=no; ctrt_why="$ctrt_missing"])
    AS_VAR_SET([ctrt_plugin_[]m4_translit([$1], [-], [_])], [$ctrt_built])
    AS_VAR_APPEND([ctrt_plugin_summary], ["
$(printf '    %-16s %-4s %s' '$1' "$ctrt_built" "$ctrt_why")"])
    AM_CONDITIONAL([PLUGIN_]m4_translit([$1], [a-z-], [A-Z_]), [test "x$ctrt_built" = xyes])
])
