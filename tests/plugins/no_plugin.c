/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/no_plugin.c: a shared object that is not a ctrt plugin. */
int no_plugin_answer(void);

int no_plugin_answer(void)
{
    return 42;
}
