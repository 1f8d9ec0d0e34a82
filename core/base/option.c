/* SPDX-License-Identifier: Apache-2.0 */
/* base/option.c: options for which 0 means a default. */
#include "base/base.h"

double ctrt_exact(double value)
{
    return value == 0 ? CTRT_ZERO : value;
}
