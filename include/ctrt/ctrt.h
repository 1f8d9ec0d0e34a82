/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/ctrt.h: includes all public headers for programs. Link with `pkg-config --libs ctrt`. */
#ifndef CTRT_CTRT_H
#define CTRT_CTRT_H

#include "ctrt/amp.h"
#include "ctrt/autograd.h"
#include "ctrt/base.h"
#include "ctrt/capture.h"
#include "ctrt/checkpoint.h"
#include "ctrt/comm.h"
#include "ctrt/data.h"
#include "ctrt/datasets.h"
#include "ctrt/device.h"
#include "ctrt/layout.h"
#include "ctrt/memory.h"
#include "ctrt/nn.h"
#include "ctrt/ops.h"
#include "ctrt/optim.h"
#include "ctrt/parallel.h"
#include "ctrt/progress.h"
#include "ctrt/share.h"
#include "ctrt/split.h"
#include "ctrt/stream.h"
#include "ctrt/tensor.h"
#include "ctrt/training.h"
#include "ctrt/transforms.h"

#endif
