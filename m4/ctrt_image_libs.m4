# SPDX-License-Identifier: Apache-2.0
#
# The image plugins open libjpeg-turbo and libpng with dlopen and do not link with them. configure determines the file
# names to open, and looks for the headers: the structs of libjpeg differ between versions of its ABI.

# CTRT_IMAGE_LIBRARY(LIB, HEADER, SYMBOL, VARIABLE, PACKAGE)
# Sets ctrt_missing to a description if the header HEADER or the library LIB is missing. Otherwise defines
# CTRT_<VARIABLE>_SONAME.
AC_DEFUN([CTRT_IMAGE_LIBRARY], [
    ctrt_soname=
    AC_CHECK_HEADER([$2], [CTRT_SONAME_OF([ctrt_soname], [-l$1], [$3])], [], [@%:@include <stdio.h>])
    AS_IF([test -z "$ctrt_soname"], [ctrt_missing="$2 or -l$1 not found (Debian, Ubuntu: $5)"],
        [AC_DEFINE_UNQUOTED([CTRT_$4_SONAME], ["$ctrt_soname"], [file name of lib$1 for dlopen])])
])
