/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/facts-backend.c: the values of backends/cuda/host/driver_api.h, for test-softcuda-facts.c. */
#include "../../backends/cuda/host/driver_api.h"

extern const long long softcuda_facts[];
const long long softcuda_facts[] = {
#define FACT(backends, headers) (long long)(backends),
#include "facts.def"
#undef FACT
};
