/* SPDX-License-Identifier: Apache-2.0 */
/* What this provider knows of ONNX Runtime: the C ABI of plugin execution providers, in
 * declarations of our own. Interface version 23 (ONNX Runtime 1.23) is laid out here; calls.inc
 * lists the functions by their place in the runtime's tables, which only ever grow at the end.
 * Every struct says which version it was laid out for, so that a newer runtime reads no field
 * beyond it. Nothing of ONNX Runtime is included or linked. */
#ifndef ORT_ABI_H
#define ORT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORT_INTERFACE = 23, ORT_INTERFACE_SHAPES = 24 };

/* The runtime's objects, which are never looked into. */
struct ort_status;
struct ort_node;
struct ort_graph;
struct ort_value_info;
struct ort_value;
struct ort_run;           /* OrtKernelContext: one execution of one node. */
struct ort_attribute;
struct ort_type_info;
struct ort_tensor_info;
struct ort_hardware;
struct ort_device;
struct ort_pairs;
struct ort_session_options;
struct ort_logger;
struct ort_support;       /* OrtEpGraphSupportInfo: where a provider puts what it claims. */

typedef void (*ort_function)(void);
typedef void (*ort_task)(void *arg, size_t i);

/* Types of elements, of failures, of attributes, of devices, of log lines. */
enum ort_type {
    ORT_F32 = 1,
    ORT_U8 = 2,
    ORT_I8 = 3,
    ORT_I32 = 6,
    ORT_I64 = 7,
    ORT_F16 = 10,
    ORT_BF16 = 16,
    ORT_U4 = 21,
    ORT_I4 = 22
};
/* 11, "provider failed", is never used: Python would start again without us, in silence. */
enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 };
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_INTS = 2, ORT_ATTRIBUTE_FLOAT = 3,
       ORT_ATTRIBUTE_STRING = 5 };
enum { ORT_HARDWARE_CPU = 0 };
/* OrtEpDataLayout: where the channels of an image lie. */
enum { ORT_CHANNELS_FIRST = 0, ORT_CHANNELS_LAST = 1 };
enum { ORT_LOG_INFO = 1, ORT_LOG_WARNING = 2 };

struct ort_api_base {
    const ort_function *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
};

struct ort_provider;

/* OrtEpFactory. */
struct ort_factory {
    uint32_t version;
    const char *(*get_name)(const struct ort_factory *);
    const char *(*get_vendor)(const struct ort_factory *);
    struct ort_status *(*get_supported_devices)(struct ort_factory *,
                                                const struct ort_hardware *const *, size_t,
                                                struct ort_device **, size_t, size_t *);
    struct ort_status *(*create_provider)(struct ort_factory *, const struct ort_hardware *const *,
                                          const struct ort_pairs *const *, size_t,
                                          const struct ort_session_options *,
                                          const struct ort_logger *, struct ort_provider **);
    void (*release_provider)(struct ort_factory *, struct ort_provider *);
    uint32_t (*get_vendor_id)(const struct ort_factory *);
    const char *(*get_version)(const struct ort_factory *);
    ort_function validate_compiled_model;
    struct ort_status *(*create_allocator)(struct ort_factory *, const void *,
                                           const struct ort_pairs *, void **);
    void (*release_allocator)(struct ort_factory *, void *);
    struct ort_status *(*create_data_transfer)(struct ort_factory *, void **);
    bool (*is_stream_aware)(const struct ort_factory *);
    ort_function create_stream;
};

/* OrtNodeComputeInfo: what runs one claimed group. */
struct ort_compute {
    uint32_t version;
    struct ort_status *(*create_state)(struct ort_compute *, void *, void **);
    struct ort_status *(*compute)(struct ort_compute *, void *, struct ort_run *);
    void (*release_state)(struct ort_compute *, void *);
};

/* OrtEp: the provider of one session. */
struct ort_provider {
    uint32_t version;
    const char *(*get_name)(const struct ort_provider *);
    struct ort_status *(*get_capability)(struct ort_provider *, const struct ort_graph *,
                                         struct ort_support *);
    struct ort_status *(*compile)(struct ort_provider *, const struct ort_graph **,
                                  const struct ort_node **, size_t, struct ort_compute **,
                                  struct ort_node **);
    void (*release_computes)(struct ort_provider *, struct ort_compute **, size_t);
    struct ort_status *(*preferred_layout)(struct ort_provider *, int *);
    struct ort_status *(*should_convert_layout)(struct ort_provider *, const char *, const char *,
                                                int, int *);
    ort_function set_dynamic_options, on_run_start, on_run_end, create_allocator, create_stream,
        compatibility;
};

/* OrtNodeFusionOptions. */
struct ort_fusion {
    uint32_t version;
    bool drop_constants; /* The group's constants are no inputs of the fused node. */
};

_Static_assert(sizeof(ort_function) == 8 && sizeof(void *) == 8, "64-bit pointers");
_Static_assert(offsetof(struct ort_factory, get_name) == 8 && sizeof(struct ort_factory) == 14 * 8,
               "OrtEpFactory of interface 23");
_Static_assert(sizeof(struct ort_provider) == 13 * 8, "OrtEp of interface 23");
_Static_assert(sizeof(struct ort_compute) == 4 * 8, "OrtNodeComputeInfo");

/* The functions of the runtime that are called, by name. */
struct ort_api {
#define ORT_CALL(table, place, result, name, ...) result (*name)(__VA_ARGS__);
#include "calls.inc"
#undef ORT_CALL
    bool has_shapes; /* Interface 24: shapes are told without a copy, and an unknown rank is told
                        from rank 0. */
};

#endif
