/* SPDX-License-Identifier: Apache-2.0 */
/* Names of strategies. */
#include <quern/ops.h>

#include <string.h>

#include "../base/error.h"

static const char *const strategies[] = {"float",       "int8-row", "int8-block", "int8-static",
                                         "dense",       "fp8-row",  "fp8-block",  "fp8-static"};
enum { N_STRATEGIES = (int)(sizeof strategies / sizeof *strategies) };

const char *qn_strategy_name(qn_strategy strategy)
{
    return strategy >= 0 && strategy < N_STRATEGIES ? strategies[strategy] : "?";
}

qn_status qn_strategy_parse(const char *text, qn_strategy *strategy, qn_error *err)
{
    if (text == NULL || strategy == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "strategy: text or result is NULL");
    for (int i = 0; i < N_STRATEGIES; i++) {
        if (strcmp(text, strategies[i]) == 0) {
            *strategy = i;
            return QN_OK;
        }
    }
    return qni_fail(
        err, QN_E_ARGUMENT,
        "no strategy is called '%.60s'; there are: float, int8-row, int8-block, int8-static, "
        "dense, fp8-row, fp8-block, fp8-static",
        text);
}
