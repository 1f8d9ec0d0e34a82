/* SPDX-License-Identifier: Apache-2.0 */
/* base/option.c: a value for options in which 0 means the default. */
#include "base/base.h"

double ctrt_exact(double value)
{
    return value == 0 ? CTRT_ZERO : value;
}
