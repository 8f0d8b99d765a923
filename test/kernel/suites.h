/* SPDX-License-Identifier: Apache-2.0 */
/* The suites of quern-check as prototypes; suites.inc is the list. */
#ifndef CHECK_SUITES_H
#define CHECK_SUITES_H

#include "harness/harness.h"

#define CHECK_SUITE(name, function, where) check_suite_fn check_##function;
#include "suites.inc"
#undef CHECK_SUITE

#endif
