/* SPDX-License-Identifier: Apache-2.0 */
/* The provider of one session. */
#ifndef ORT_PROVIDER_H
#define ORT_PROVIDER_H

#include "settings.h"

struct ort_status *provider_create(const struct ort_api *api, const struct ort_logger *logger,
                                   const struct settings *settings, struct ort_provider **provider);
void provider_free(struct ort_provider *provider);

#endif
