/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the suite rows.depthwise for kernels that take whole images. */
#ifndef CHECK_DEPTHWISE_IMAGES_H
#define CHECK_DEPTHWISE_IMAGES_H

#include "harness/harness.h"

check_suite_fn check_depthwise_images;

#endif
