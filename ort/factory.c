/* SPDX-License-Identifier: Apache-2.0 */
/* The two functions that ONNX Runtime looks for in the library, and the factory that it gets. */
#include "provider.h"

#include <stdlib.h>

#include <quern/base.h>

struct factory {
    struct ort_factory ort; /* First: the runtime's pointers are ours. */
    struct ort_api api;
};

QN_API struct ort_status *CreateEpFactories(const char *registered_name,
                                            const struct ort_api_base *base,
                                            const struct ort_logger *logger,
                                            struct ort_factory **factories, size_t max,
                                            size_t *count);
QN_API struct ort_status *ReleaseEpFactory(struct ort_factory *factory);

static const char *get_name(const struct ort_factory *factory)
{
    (void)factory;
    return PROVIDER_NAME;
}

static const char *get_vendor(const struct ort_factory *factory)
{
    (void)factory;
    return "quern";
}

static uint32_t get_vendor_id(const struct ort_factory *factory)
{
    (void)factory;
    return 0;
}

static const char *get_version(const struct ort_factory *factory)
{
    (void)factory;
    return qn_version();
}

static bool is_stream_aware(const struct ort_factory *factory)
{
    (void)factory;
    return false;
}

/* Memory is the CPU's and the runtime's own: nothing is allocated or copied by us. The runtime
 * calls these without looking whether they are there. */
static struct ort_status *create_allocator(struct ort_factory *factory, const void *memory,
                                           const struct ort_pairs *options, void **allocator)
{
    (void)factory;
    (void)memory;
    (void)options;
    *allocator = NULL;
    return NULL;
}

static void release_allocator(struct ort_factory *factory, void *allocator)
{
    (void)factory;
    (void)allocator;
}

static struct ort_status *create_data_transfer(struct ort_factory *factory, void **transfer)
{
    (void)factory;
    *transfer = NULL;
    return NULL;
}

static struct ort_status *get_supported_devices(struct ort_factory *ort,
                                                const struct ort_hardware *const *hardware,
                                                size_t n_hardware, struct ort_device **devices,
                                                size_t max, size_t *count)
{
    const struct ort_api *api = &((struct factory *)ort)->api;
    *count = 0;
    for (size_t i = 0; i < n_hardware && *count < max; i++)
        if (api->hardware_kind(hardware[i]) == ORT_HARDWARE_CPU) {
            ORT_TRY(api->create_device(ort, hardware[i], NULL, NULL, &devices[*count]));
            ++*count;
        }
    return NULL;
}

static struct ort_status *create_provider(struct ort_factory *ort,
                                          const struct ort_hardware *const *hardware,
                                          const struct ort_pairs *const *metadata,
                                          size_t n_hardware,
                                          const struct ort_session_options *options,
                                          const struct ort_logger *logger,
                                          struct ort_provider **provider)
{
    const struct ort_api *api = &((struct factory *)ort)->api;
    struct settings settings;
    (void)hardware;
    (void)metadata;
    (void)n_hardware;
    ORT_TRY(settings_read(api, options, &settings));
    return provider_create(api, logger, &settings, provider);
}

static void release_provider(struct ort_factory *factory, struct ort_provider *provider)
{
    (void)factory;
    provider_free(provider);
}

struct ort_status *CreateEpFactories(const char *registered_name, const struct ort_api_base *base,
                                     const struct ort_logger *logger,
                                     struct ort_factory **factories, size_t max, size_t *count)
{
    struct ort_api api = {0};
    (void)registered_name;
    (void)logger;
    *count = 0;
    ORT_TRY(runtime_load(base, &api));
    if (max < 1)
        return runtime_fail(&api, ORT_INVALID_ARGUMENT, "there is no room for a factory");
    struct factory *made = calloc(1, sizeof *made);
    if (made == NULL)
        return runtime_no_memory(&api);
    made->api = api;
    made->ort = (struct ort_factory){
        .version = ORT_INTERFACE,
        .get_name = get_name,
        .get_vendor = get_vendor,
        .get_supported_devices = get_supported_devices,
        .create_provider = create_provider,
        .release_provider = release_provider,
        .get_vendor_id = get_vendor_id,
        .get_version = get_version,
        .create_allocator = create_allocator,
        .release_allocator = release_allocator,
        .create_data_transfer = create_data_transfer,
        .is_stream_aware = is_stream_aware,
    };
    factories[0] = &made->ort;
    *count = 1;
    return NULL;
}

struct ort_status *ReleaseEpFactory(struct ort_factory *factory)
{
    free(factory);
    return NULL;
}
