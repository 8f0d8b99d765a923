/* SPDX-License-Identifier: Apache-2.0 */
/* quern: matrix products and convolutions with block-quantized weights. This header includes all
 * the others but dlpack.h and mpi.h, which need headers of others. */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include "base.h"
#include "context.h"
#include "weights.h"
#include "ops.h"
#include "parallel.h"
#include "checkpoint.h"
#include "cuda.h"

#endif
