# ctrt-plugin.m4: for the configure.ac of a plugin of ctrt. This file is installed.
# SPDX-License-Identifier: Apache-2.0

# CTRT_PLUGIN_DEVEL([MINIMUM VERSION], [ACTION IF FOUND], [ACTION IF NOT FOUND])
#
# Looks for an installed ctrt with pkg-config, at least of MINIMUM VERSION if that is given. Substitutes
# CTRT_PLUGIN_CFLAGS, the compiler flags of a plugin (a plugin does not link with ctrt; one that does, for example a
# strategy, also takes `PKG_CHECK_MODULES([CTRT], [ctrt])`), CTRT_PLUGIN_ABI, and plugindir, the folder in which all
# programs search. A plugin that is installed under another prefix is found by CTRT_PLUGIN_PATH; give configure
# --with-ctrt-plugindir=DIR then. Without ACTION IF NOT FOUND, configure stops if ctrt is missing.
AC_DEFUN([CTRT_PLUGIN_DEVEL], [
    AC_REQUIRE([PKG_PROG_PKG_CONFIG])
    PKG_CHECK_MODULES([CTRT_PLUGIN], [ctrt-plugin]m4_ifnblank([$1], [ >= $1]), [
        AC_ARG_WITH([ctrt-plugindir],
            [AS_HELP_STRING([--with-ctrt-plugindir=DIR], [where the plugin is installed @<:@the folder of ctrt's plugins@:>@])],
            [plugindir=$with_ctrt_plugindir],
            [plugindir=`$PKG_CONFIG --variable=plugindir ctrt-plugin`])
        CTRT_PLUGIN_ABI=`$PKG_CONFIG --variable=plugin_abi ctrt-plugin`
        AC_SUBST([plugindir])
        AC_SUBST([CTRT_PLUGIN_ABI])
        $2
    ], [$3])
])
