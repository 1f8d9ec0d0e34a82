/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/facts-libraries.h: each compares a library's declarations of the backend with NVIDIA's header, prints line `number` of TAP, and returns
 * how many differ. */
#ifndef SOFTCUDA_FACTS_LIBRARIES_H
#define SOFTCUDA_FACTS_LIBRARIES_H

int facts_cublaslt(int number);
int facts_cudnn(int number);

#endif
