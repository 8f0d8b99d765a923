/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are given for checkpoints and are none, told from their first 512 bytes. What is said
 * about one ends with what to do, after a semicolon. */
#include "foreign.h"

#include <string.h>

enum { LOOKED_AT = 512, TAR_AT = 257, TFLITE_AT = 4, NAME_AT = 30 };

static const struct magic {
    size_t at, length;
    const char *bytes, *words;
} magics[] = {
    {TFLITE_AT, 4, "TFL3",
     "a TensorFlow Lite model; quantize the checkpoint that it was converted from"},
    {0, 2, "\x1f\x8b", "compressed with gzip; decompress it first (gunzip)"},
    {0, 3, "BZh", "compressed with bzip2; decompress it first (bunzip2)"},
    {0, 6,
     "\xfd"
     "7zXZ\0",
     "compressed with xz; decompress it first (unxz)"},
    {0, 4, "\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first (unzstd)"},
    {TAR_AT, 5, "ustar", "a tar archive; unpack it and give the files in it"},
    {0, 4, "\x89HDF", "an HDF5 file, as Keras writes; save its arrays as npy or safetensors"},
    {0, 23, "version https://git-lfs",
     "a Git LFS pointer, the data were never fetched; 'git lfs pull' fetches them"},
    {0, 5, "<?xml", "an XML text, most likely the error of a download; fetch the file again"},
    {0, 1, "{",
     "a JSON text; give the safetensors file itself, or an index that ends in "
     ".index.json"},
};

/* "PK", and the name of the first file in the archive. */
static const char *kind_of_zip(const uint8_t *bytes, size_t size)
{
    if (size < 4 || memcmp(bytes, "PK\003\004", 4) != 0)
        return NULL;
    const size_t name = size < NAME_AT ? 0 : (size_t)bytes[26] | (size_t)bytes[27] << 8;
    const size_t end = NAME_AT + name < size ? NAME_AT + name : size;
    for (size_t i = NAME_AT; i + 4 <= end; i++) {
        if (memcmp(bytes + i, ".npy", 4) == 0)
            return "an npz archive; unzip it and give the .npy files in it";
        if (memcmp(bytes + i, ".pkl", 4) == 0 || memcmp(bytes + i, "/dat", 4) == 0)
            return "a PyTorch checkpoint (a zip archive with a Python pickle, which is a program "
                   "and is not run); load it with torch and save it with "
                   "safetensors.torch.save_file()";
    }
    return "a zip archive; unzip it and give the files in it";
}

static const char *kind_of_pickle(const uint8_t *bytes, size_t size)
{
    if (size < 3 || bytes[0] != 0x80 || bytes[1] < 2 || bytes[1] > 5)
        return NULL;
    return "a Python pickle, which is a program and is not run; load it with torch and save it "
           "with safetensors.torch.save_file()";
}

static bool begins_with(const uint8_t *bytes, size_t size, const char *word)
{
    for (size_t i = 0; word[i] != 0; i++) {
        const uint8_t c = i < size ? bytes[i] : 0;
        if ((c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c) != (uint8_t)word[i])
            return false;
    }
    return true;
}

static const char *kind_of_page(const uint8_t *bytes, size_t size)
{
    size_t at = size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size && strchr(" \t\r\n", bytes[at]) != NULL && bytes[at] != 0)
        at++;
    if (!begins_with(bytes + at, size - at, "<!doctype html") &&
        !begins_with(bytes + at, size - at, "<html") &&
        !begins_with(bytes + at, size - at, "<head"))
        return NULL;
    return "an HTML page, most likely the error or login page of a download; fetch the file again";
}

const char *qni_foreign_kind(const uint8_t *bytes, size_t size)
{
    static const char *(*const looks[])(const uint8_t *, size_t) = {kind_of_zip, kind_of_pickle,
                                                                    kind_of_page};
    const char *words = NULL;
    size = size < LOOKED_AT ? size : LOOKED_AT;
    for (size_t i = 0; i < sizeof magics / sizeof *magics && words == NULL; i++) {
        const struct magic *m = &magics[i];
        if (size >= m->at + m->length && memcmp(bytes + m->at, m->bytes, m->length) == 0)
            words = m->words;
    }
    for (size_t i = 0; i < sizeof looks / sizeof *looks && words == NULL; i++)
        words = looks[i](bytes, size);
    return words;
}
