/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/static-tls.c: a shared object that needs more static thread-local storage than the loader has left. */
static __thread __attribute__((tls_model("initial-exec"))) char block[1 << 24];
char *static_tls_block(void);

__attribute__((visibility("default"))) char *static_tls_block(void)
{
    return block;
}
