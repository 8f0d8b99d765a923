/* SPDX-License-Identifier: Apache-2.0 */
/* quern: matrix products and convolutions with block-quantized weights. This header includes all
 * the others but dlpack.h, which needs DLPack's own header. */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include "base.h"
#include "context.h"
#include "weights.h"
#include "ops.h"
#include "checkpoint.h"
#include "cuda.h"

#endif
