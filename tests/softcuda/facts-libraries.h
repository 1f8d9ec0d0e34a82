/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/facts-libraries.h: comparisons of the backend's declarations of NVIDIA libraries with NVIDIA's
 * headers. Each function prints line `number` of TAP and returns the number of differences. */
#ifndef SOFTCUDA_FACTS_LIBRARIES_H
#define SOFTCUDA_FACTS_LIBRARIES_H

int facts_cublaslt(int number);
int facts_cudnn(int number);

#endif
