/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/nextabi.c: a plugin of the next ABI major version, whose entry point has another name. */
const void *ctrt_plugin_v2(unsigned host_abi_major, unsigned host_abi_minor);

__attribute__((visibility("default"))) const void *ctrt_plugin_v2(unsigned host_abi_major, unsigned host_abi_minor)
{
    (void)host_abi_major, (void)host_abi_minor;
    return 0;
}
