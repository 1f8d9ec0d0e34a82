/* SPDX-License-Identifier: Apache-2.0 */
/* share/lease.h: keeps the block of a device's storage allocated while other processes use it.
 *
 * A lease is a pair of connected sockets. One end is sent with the memory, so messages and receivers hold descriptors
 * of it, and the kernel closes those of a process that is killed. When the storage's tensors are released and this end
 * is closed everywhere, no other process can use the block. A receiver also sends its process ID when it opens the
 * memory and when it has finished. For a process that ended without finishing, the owner checks by a pidfd that the
 * process is gone, because only then the driver has ended its work on the device.
 *
 * The owner checks leases without a thread: when it shares or releases a storage, when the program or the memory policy
 * returns cached memory (ctrt_memory_empty_cache), and before an allocation fails. */
#ifndef SHARE_LEASE_H
#define SHARE_LEASE_H

#include "memory/pool.h"
#include "tensor/tensor.h"

/* Writes the descriptor to send, which belongs to the lease. Creates the lease of the storage, which must own its
 * block, if there is none. */
ctrt_status lease_get(int *fd, struct storage *storage);
/* Whether the storage has a lease of this process, as owner. */
bool lease_owned(const struct storage *storage);

/* In the receiver: lease_open takes over the descriptor `fd`, and lease_close ends the use, which must be complete. In
 * the child of a fork, the descriptors are closed, and lease_close has no effect. */
struct lease_use;
ctrt_status lease_open(struct lease_use **out, int fd);
void lease_close(struct lease_use *use);

#endif
