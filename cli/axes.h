/* SPDX-License-Identifier: Apache-2.0 */
/* What the dimensions of a stored tensor mean. Frameworks disagree, and a shape does not tell: a
 * letter a dimension does, o outputs, i inputs, h and w the kernel, e experts.
 *
 *     oi    torch's Linear                       io    GPT-2's Conv1D, Keras' and JAX's Dense
 *     oihw  torch's Conv2d                       hwio  Keras' and JAX's
 *     oiw   torch's Conv1d                       eoi, eio  all experts of a layer in one tensor
 *     iohw, iow  torch's ConvTranspose, whose groups divide the inputs: [in, out / groups, ...] */
#ifndef CLI_AXES_H
#define CLI_AXES_H

#include "cli.h"

enum axis { AXIS_O, AXIS_I, AXIS_H, AXIS_W, AXIS_E, N_AXES };
struct axes {
    char text[8];
    int rank, at[N_AXES]; /* the dimension of each, or -1 */
};

/* 1, or 0: not such a word. */
int axes_parse(const char *text, struct axes *axes);
/* Elements along one of the axes; 1 if there is none. */
int64_t axes_size(const struct axes *axes, const qn_tensor *tensor, enum axis axis);
/* Are the groups of a convolution along its inputs? */
int axes_are_transposed(const struct axes *axes);
/* Outputs, and inputs of each (of one group, times the taps), of the weight that a tensor holds (of
 * each expert). 0 if `groups` does not divide what it has to. */
int axes_geometry(const struct axes *axes, const qn_tensor *tensor, int64_t groups, int64_t *n,
                  int64_t *k);
/* Copies a tensor of any strides, or one expert of it, as the library has weights: outputs, then
 * taps, then inputs. rows is [n, k] with memory; its type is the tensor's, of at most 8 bytes. */
void axes_gather(const struct axes *axes, const qn_tensor *tensor, int64_t expert, int64_t groups,
                 const qn_tensor *rows);

/* Where weights come from whose tensor is not [out, in] or [out, in, h, w]: kept in the metadata of
 * the file, as "quern.from.NAME" = "eio 7 1 TENSOR": axes, expert, groups. */
#define ORIGIN_KEY "quern.from."
struct origin {
    struct axes axes;
    int64_t expert, groups;
    const char *tensor;
};
/* What a file says of a weight; 0: nothing, or nothing that could be. */
int origin_find(const qn_file *file, const char *weight, struct origin *origin);
/* Does the tensor fit, and make weights of n and k? */
int origin_fits(const struct origin *origin, const qn_tensor *tensor, int64_t n, int64_t k);

#endif
