/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/own_address.h: an address of this machine for other machines. */
#ifndef PARALLEL_OWN_ADDRESS_H
#define PARALLEL_OWN_ADDRESS_H

#define OWN_ADDRESS_BYTES 64

/* Writes a numeric address of this machine that other machines can probably connect to: the first of these that an
 * interface other than the loopback interface has.
 *
 *   1. an address of the host name `name`. Debian's /etc/hosts gives 127.0.1.1, which is none
 *   2. the address from which packets to other networks are sent
 *   3. the first address of the first interface, IPv4 before IPv6, without link-local ones
 *
 * Without any of them: 127.0.0.1. Thread-safe. */
void own_address(char out[OWN_ADDRESS_BYTES], const char *name);

#endif
