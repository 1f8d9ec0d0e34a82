/* SPDX-License-Identifier: Apache-2.0 */
/* Tests layouts. */
#include "multi_check.h"
#include "run.h"
TEST_MAIN
{
    return done();
}
