/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/stranger.c: a shared object that is not a ctrt plugin. */
int stranger_answer(void);

int stranger_answer(void)
{
    return 42;
}
