/* SPDX-License-Identifier: Apache-2.0 */
/* base/version.c: the library's version, from configure.ac. */
#include "config.h"

#include "ctrt/base.h"

const char *ctrt_version(void)
{
    return PACKAGE_VERSION;
}
