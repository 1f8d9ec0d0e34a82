/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/noplugin.c: a shared object that is not a ctrt plugin. */
int noplugin_answer(void);

int noplugin_answer(void)
{
    return 42;
}
