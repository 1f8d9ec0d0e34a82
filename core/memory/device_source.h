/* SPDX-License-Identifier: Apache-2.0 */
/* memory/device_source.h: a device's lowest memory source: the backend. */
#ifndef CORE_MEMORY_DEVICE_SOURCE_H
#define CORE_MEMORY_DEVICE_SOURCE_H

#include "memory/pool.h"

/* Sets the functions of memory->source, and memory->ordered. */
void source_complete(struct device_memory *memory);

#endif
