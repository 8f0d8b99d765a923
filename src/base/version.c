/* SPDX-License-Identifier: Apache-2.0 */
/* What was built. The build system defines QN_COMMIT for this file alone. */
#include <quern/base.h>

#ifndef QN_COMMIT
#define QN_COMMIT "unknown"
#endif

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const char *qn_version(void)
{
    return TEXT(QN_VERSION_MAJOR) "." TEXT(QN_VERSION_MINOR) "." TEXT(QN_VERSION_PATCH);
}

const char *qn_commit(void)
{
    return QN_COMMIT;
}
