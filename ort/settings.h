/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a session: ep.quernexecutionprovider.NAME, or the provider's own options. */
#ifndef ORT_SETTINGS_H
#define ORT_SETTINGS_H

#include "runtime.h"

#include <quern/ops.h>

#define PROVIDER_NAME "QuernExecutionProvider"

struct settings {
    int32_t threads;       /* 0: the session's intra-op threads; else a pool of so many. */
    int32_t cut;           /* Work is cut for so many threads of the session; 0: the CPUs. */
    qn_strategy strategy;  /* Of float x and quantized weights. */
    bool has_strategy;     /* Said, not the default. */
    char quantize[48];     /* Format for float weights; "" leaves them to ONNX Runtime. */
    bool channels_last;    /* Images may be turned: [n, h, w, channels]. */
    bool log;              /* Tell what is claimed and why the rest is not, as warnings. */
};

struct ort_status *settings_read(const struct ort_api *api,
                                 const struct ort_session_options *options,
                                 struct settings *settings);

#endif
