/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping and replacing files; the contract is in disk.h. Every call to the system is checked,
 * retried when interrupted, and its failure told in words of our own (strerror is not safe among
 * threads). Nothing here looks at what a file means. */
#define _DEFAULT_SOURCE
#if defined(__linux__)
#define _GNU_SOURCE /* fallocate, renameat2 */
#endif

#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/error.h"
#include "../base/file.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the readers map little-endian files and use them where they lie"
#endif

static const char *reason(int code)
{
    switch (code) {
    case ENOENT:
        return "no such file or folder";
    case ENOTDIR:
        return "a part of the path is not a folder";
    case EACCES:
    case EPERM:
        return "permission denied";
    case EISDIR:
        return "it is a folder";
    case ELOOP:
        return "a symbolic link stands in the way";
    case ENAMETOOLONG:
        return "the name is too long";
    case EMFILE:
    case ENFILE:
        return "too many open files";
    case ENOSPC:
        return "no space left on the device";
    case EDQUOT:
        return "the disk quota is used up";
    case EFBIG:
        return "larger than the file system or the file size limit allows";
    case EROFS:
        return "the file system is read-only";
    case ENOMEM:
        return "out of memory";
    case EIO:
        return "an input/output error of the device";
    case ENODEV:
        return "files of this kind cannot be mapped";
    case ETXTBSY:
    case EBUSY:
        return "the file is in use";
    default:
        return "the system refused";
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A part of `size` bytes, from the beginning and the length that the options give. */
static qn_status find_part(const qn_file_options *options, size_t size, size_t *offset,
                           size_t *bytes, qn_error *err)
{
    const uint64_t from = (uint64_t)options->offset;
    if (options->offset < 0 || options->bytes < -1)
        return qni_fail(err, QN_E_ARGUMENT,
                        "offset is %lld and bytes %lld: from 0 on, bytes -1 for all",
                        (long long)options->offset, (long long)options->bytes);
    if (from > size || (options->bytes >= 0 && (uint64_t)options->bytes > size - from))
        return qni_fail(err, QN_E_ARGUMENT,
                        "has %zu bytes: %lld bytes from byte %lld on are not in it", size,
                        (long long)options->bytes, (long long)options->offset);
    *offset = (size_t)from;
    *bytes = options->bytes < 0 ? size - (size_t)from : (size_t)options->bytes;
    return QN_OK;
}

static size_t page_bytes(void)
{
    const long asked = sysconf(_SC_PAGESIZE);
    return asked > 0 ? (size_t)asked : 4096;
}

/* Begin as the options wish. A mapping that fails is given back without telling the caller. */
static qn_status apply_options(struct qni_mapping *m, const qn_file_options *options, qn_error *err)
{
    if (options->prefetch)
        qni_mapping_prefetch(m, 0, m->size);
    if (options->lock && m->size > 0 && mlock(m->bytes, m->size) != 0)
        return qni_fail(err, QN_E_MEMORY,
                        "cannot be locked in memory (%zu bytes): the limit of the process (ulimit "
                        "-l) or the machine's memory does not allow it (error %d)",
                        m->size, errno);
    m->is_locked = options->lock && m->size > 0;
    return QN_OK;
}

static qn_status make_mapping(const struct qni_allocator *a, const struct qni_mapping *from,
                              const qn_file_options *options, struct qni_mapping **mapping,
                              qn_error *err)
{
    struct qni_mapping *m = qni_alloc(a, sizeof *m);
    if (m == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    *m = *from;
    m->allocator = *a;
    m->references = 1;
    m->is_locked = 0;
    const qn_status status = apply_options(m, options, err);
    if (status != QN_OK)
        qni_free(a, m, sizeof *m);
    else
        *mapping = m;
    return status;
}

static qn_status regular_size(int fd, size_t *size, qn_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return qni_fail(err, QN_E_READ, "cannot be examined: %s (error %d)", reason(errno), errno);
    if (S_ISDIR(info.st_mode))
        return qni_fail(err, QN_E_OPEN, "cannot be opened: it is a folder");
    if (!S_ISREG(info.st_mode))
        return qni_fail(err, QN_E_OPEN, "cannot be opened: it is not a regular file");
    if ((uint64_t)info.st_size > SIZE_MAX / 2)
        return qni_fail(err, QN_E_READ, "is larger than the address space");
    *size = (size_t)info.st_size;
    return QN_OK;
}

qn_status qni_mapping_open(const struct qni_allocator *a, int fd, const qn_file_options *options,
                           struct qni_mapping **mapping, qn_error *err)
{
    struct qni_mapping m;
    size_t size = 0, offset = 0;
    memset(&m, 0, sizeof m);
    QNI_TRY(regular_size(fd, &size, err));
    QNI_TRY(find_part(options, size, &offset, &m.size, err));
    m.bytes = (const uint8_t *)"";
    if (m.size == 0) /* nothing to map */
        return make_mapping(a, &m, options, mapping, err);
    const size_t before = offset % page_bytes();
    m.pages_bytes = m.size + before;
    void *pages = mmap(NULL, m.pages_bytes, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - before));
    const int code = errno;
    if (pages == MAP_FAILED)
        return qni_fail(err, code == ENOMEM ? QN_E_MEMORY : QN_E_READ,
                        "cannot be mapped: %s (error %d)", reason(code), code);
    m.pages = pages;
    m.bytes = m.pages + before;
    const qn_status status = make_mapping(a, &m, options, mapping, err);
    if (status != QN_OK)
        munmap(pages, m.pages_bytes);
    return status;
}

qn_status qni_mapping_open_path(const struct qni_allocator *a, const char *path,
                                const qn_file_options *options, struct qni_mapping **mapping,
                                qn_error *err)
{
    const int fd = qni_file_open(path, QNI_FILE_READ);
    if (fd < 0)
        return qni_fail(err, QN_E_OPEN, "cannot be opened: %s (error %d)", reason(errno), errno);
    const qn_status status = qni_mapping_open(a, fd, options, mapping, err);
    close(fd);
    return status;
}

qn_status qni_mapping_borrow(const struct qni_allocator *a, const void *bytes, size_t size,
                             const qn_file_options *options, struct qni_mapping **mapping,
                             qn_error *err)
{
    struct qni_mapping m;
    size_t offset = 0;
    memset(&m, 0, sizeof m);
    QNI_TRY(find_part(options, size, &offset, &m.size, err));
    m.bytes = bytes == NULL ? (const uint8_t *)"" : (const uint8_t *)bytes + offset;
    m.release = options->release;
    m.release_arg = options->release_arg;
    return make_mapping(a, &m, options, mapping, err);
}

struct qni_mapping *qni_mapping_retain(struct qni_mapping *mapping)
{
    __atomic_add_fetch(&mapping->references, 1, __ATOMIC_RELAXED);
    return mapping;
}

/* The last holder must see everything that the others did before they let go. */
void qni_mapping_release(struct qni_mapping *mapping)
{
    if (mapping == NULL || __atomic_sub_fetch(&mapping->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (mapping->is_locked)
        munlock(mapping->bytes, mapping->size);
    if (mapping->pages != NULL)
        munmap((void *)(uintptr_t)mapping->pages, mapping->pages_bytes);
    if (mapping->release != NULL)
        mapping->release(mapping->release_arg);
    const struct qni_allocator a = mapping->allocator;
    qni_free(&a, mapping, sizeof *mapping);
}

void qni_mapping_forget(const struct qni_mapping *mapping, size_t offset, size_t bytes)
{
    const size_t page = page_bytes();
    /* The pages begin before the bytes do. A tensor's first and last page may belong to neighbours
     * too: the first one is dropped (readers go forward), the last one is kept. Pages of the
     * caller's may be all that there is of their content. */
    if (mapping->pages == NULL)
        return;
    const size_t first = (size_t)(mapping->bytes - mapping->pages) + offset;
    const size_t from = first / page * page, to = (first + bytes) / page * page;
    if (from < to)
        madvise((void *)(uintptr_t)(mapping->pages + from), to - from, MADV_DONTNEED);
}

void qni_mapping_sample(const struct qni_mapping *mapping, bool is_sampled)
{
    if (mapping->pages != NULL)
        madvise((void *)(uintptr_t)mapping->pages, mapping->pages_bytes,
                is_sampled ? MADV_RANDOM : MADV_NORMAL);
}

void qni_mapping_prefetch(const struct qni_mapping *mapping, size_t offset, size_t bytes)
{
    const uintptr_t at = (uintptr_t)mapping->bytes + offset, from = at - at % page_bytes();
    if (bytes > 0)
        madvise((void *)from, (size_t)(at + bytes - from), MADV_WILLNEED);
}

/* ---- writing --------------------------------------------------------------------------------- */

static qn_status check_target(const char *path, int32_t overwrite, qn_error *err)
{
    struct stat named, info;
    if (lstat(path, &named) != 0) /* absent, or the open of the part file will say why */
        return QN_OK;
    if (stat(path, &info) != 0 && S_ISLNK(named.st_mode))
        return qni_fail(err, QN_E_OPEN,
                        "cannot be written: it is a symbolic link that leads nowhere");
    if (S_ISDIR(info.st_mode))
        return qni_fail(err, QN_E_OPEN, "cannot be written: it is a folder");
    if (!overwrite)
        return qni_fail(err, QN_E_EXISTS, "exists already, and overwriting was not asked for");
    if (!S_ISREG(info.st_mode))
        return qni_fail(err, QN_E_OPEN, "cannot be replaced: it is not a regular file");
    return QN_OK;
}

/*
 * May this file be ours? 0: yes; 1: no, but it may be replaced (others could have written to it, or
 * keep it under another name: then it is published already, see name_new); else the failure.
 */
static qn_status check_found(const struct stat *info, qn_error *err)
{
    if (!S_ISREG(info->st_mode))
        return qni_fail(err, QN_E_OPEN, "cannot be written: its .part is not a regular file");
    if (info->st_uid != geteuid())
        return qni_fail(err, QN_E_OPEN,
                        "cannot be written: its .part is there and belongs to another user (%lu); "
                        "remove it or choose another name",
                        (unsigned long)info->st_uid);
    return (info->st_mode & (S_IWGRP | S_IWOTH)) != 0 || info->st_nlink > 1 ? 1 : QN_OK;
}

qn_status qni_output_check(const struct qni_allocator *a, const char *path, int32_t overwrite,
                           qn_error *err)
{
    QNI_TRY(check_target(path, overwrite, err));
    const size_t text_bytes = strlen(path) + sizeof ".part";
    char *text = qni_alloc(a, text_bytes);
    if (text == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    struct stat part;
    memcpy(text, path, text_bytes - sizeof ".part");
    memcpy(text + text_bytes - sizeof ".part", ".part", sizeof ".part");
    const bool is_there = lstat(text, &part) == 0;
    char *slash = strrchr(text, '/');
    if (slash != NULL)
        slash[slash == text] = 0;
    const bool is_open =
        faccessat(AT_FDCWD, slash != NULL ? text : ".", W_OK | X_OK, AT_EACCESS) == 0;
    const int code = errno;
    qni_free(a, text, text_bytes);
    if (!is_open)
        return qni_fail(err, QN_E_OPEN, "cannot be written in its folder: %s (error %d)",
                        reason(code), code);
    const qn_status found = is_there ? check_found(&part, err) : QN_OK;
    return found < 0 ? found : QN_OK;
}

/* The part file that is there, or else a new one; -1 with errno set. */
static int open_or_make(const char *part, bool *is_found)
{
    *is_found = true;
    int fd = qni_file_open(part, QNI_FILE_FOUND);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    *is_found = false;
    return qni_file_open(part, QNI_FILE_NEW);
}

/*
 * Open and lock the part file; fresh: one that was not there before. The lock is the kernel's
 * (flock): it goes away with the process, however that ends. Between open and lock another process
 * may have published or removed the file that we opened, therefore the name must still mean it
 * afterwards. What must not be written to is removed, never emptied: whoever has it open keeps it.
 */
static qn_status open_part(struct qni_output *o, bool fresh, qn_error *err)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        bool is_found = false;
        const int fd = open_or_make(o->part, &is_found);
        if (fd < 0 && !is_found && errno == EEXIST)
            continue;
        if (fd < 0)
            return qni_fail(err, QN_E_OPEN, "cannot be written (as .part): %s (error %d)",
                            reason(errno), errno);
        struct stat ours, named;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(fd);
            return qni_fail(err, QN_E_OPEN, "is being written by another process or writer");
        }
        if (fstat(fd, &ours) != 0 || lstat(o->part, &named) != 0 || ours.st_ino != named.st_ino ||
            ours.st_dev != named.st_dev) {
            close(fd);
            continue;
        }
        const qn_status found = is_found ? check_found(&ours, err) : QN_OK;
        if (found < 0) {
            close(fd);
            return found;
        }
        if (found > 0 || (is_found && fresh)) {
            o->was_replaced |= found > 0;
            const int removed = unlink(o->part), code = errno;
            close(fd);
            if (removed != 0)
                return qni_fail(err, QN_E_OPEN, "its .part cannot be replaced: %s (error %d)",
                                reason(code), code);
            continue;
        }
        o->fd = fd;
        o->is_found = is_found;
        o->found_bytes = is_found ? ours.st_size : 0;
        return QN_OK;
    }
    return qni_fail(err, QN_E_OPEN, "cannot be written: its .part changes all the time");
}

qn_status qni_output_open(const struct qni_allocator *a, const char *path, int32_t overwrite,
                          struct qni_output **output, qn_error *err)
{
    QNI_TRY(check_target(path, overwrite, err));
    struct qni_output *o = qni_alloc_zero(a, sizeof *o);
    const size_t length = strlen(path);
    const size_t text_bytes = length + 1 + length + sizeof ".part";
    char *text = o == NULL ? NULL : qni_alloc(a, text_bytes);
    if (text == NULL) {
        qni_free(a, o, sizeof *o);
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    }
    o->allocator = *a;
    o->text_bytes = text_bytes;
    o->overwrite = overwrite;
    o->fd = -1;
    o->path = memcpy(text, path, length + 1);
    o->part = memcpy(text + length + 1, path, length);
    memcpy(o->part + length, ".part", sizeof ".part");
    const qn_status status = open_part(o, false, err);
    if (status != QN_OK) {
        qni_output_close(o, 1);
        return status;
    }
    *output = o;
    return QN_OK;
}

qn_status qni_output_renew(struct qni_output *output, qn_error *err)
{
    if (!output->is_found)
        return QN_OK;
    close(output->fd); /* another process may take it now: then that is told */
    output->fd = -1;
    return open_part(output, true, err);
}

static qn_status cannot_grow(uint64_t bytes, int code, qn_error *err)
{
    return qni_fail(err, QN_E_WRITE, "cannot grow to %llu bytes: %s (error %d)",
                    (unsigned long long)bytes, reason(code), code);
}

qn_status qni_output_cut(struct qni_output *output, uint64_t bytes, qn_error *err)
{
    if (bytes > INT64_MAX)
        return cannot_grow(bytes, EFBIG, err);
    return ftruncate(output->fd, (off_t)bytes) == 0 ? QN_OK : cannot_grow(bytes, errno, err);
}

qn_status qni_output_claim(struct qni_output *output, uint64_t bytes, qn_error *err)
{
    QNI_TRY(qni_output_cut(output, bytes, err));
#if defined(__linux__)
    if (bytes > 0 && fallocate(output->fd, 0, 0, (off_t)bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return cannot_grow(bytes, errno, err);
#endif
    return QN_OK;
}

/* The kernel moves at most 2 GiB a call. */
static const size_t step_bytes = (size_t)1 << 30;

qn_status qni_output_write(struct qni_output *output, uint64_t offset, const void *data,
                           size_t bytes, qn_error *err)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const size_t step = bytes < step_bytes ? bytes : step_bytes;
        const ssize_t done = pwrite(output->fd, from, step, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        const int code = done < 0 ? errno : ENOSPC; /* a file that takes nothing is full */
        if (done <= 0)
            return qni_fail_at(err, QN_E_WRITE, (int64_t)offset,
                               "cannot be written at byte %llu: %s (error %d)",
                               (unsigned long long)offset, reason(code), code);
        from += done;
        offset += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return QN_OK;
}

qn_status qni_output_read(struct qni_output *output, uint64_t offset, void *data, size_t bytes,
                          qn_error *err)
{
    uint8_t *to = data;
    while (bytes > 0) {
        const size_t step = bytes < step_bytes ? bytes : step_bytes;
        const ssize_t done = pread(output->fd, to, step, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return qni_fail_at(err, QN_E_READ, (int64_t)offset, "its .part cannot be read back");
        to += done;
        offset += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return QN_OK;
}

qn_status qni_output_sync(struct qni_output *output, qn_error *err)
{
    int code;
    do
        code = fsync(output->fd) == 0 ? 0 : errno;
    while (code == EINTR);
    /* Some file systems cannot sync and say so with EINVAL; there is nothing better to do there. */
    if (code != 0 && code != EINVAL)
        return qni_fail(err, QN_E_WRITE, "cannot be brought to the disk: %s (error %d)",
                        reason(code), code);
    return QN_OK;
}

/* The new name must survive a power failure too: sync the folder it is in. Not all can; then not.
 */
static void sync_folder(struct qni_output *output)
{
    char *slash = strrchr(output->path, '/');
    const char kept = slash == NULL ? 0 : slash[1];
    if (slash != NULL)
        slash[1] = 0;
    const int fd = qni_file_open(slash == NULL ? "." : output->path, QNI_FILE_FOLDER);
    if (slash != NULL)
        slash[1] = kept;
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

/*
 * Give the file its name unless that is taken: 0 or errno. Best in one step, so that a process
 * killed here leaves one name. File systems that cannot do so (EINVAL) get the new name with link()
 * and lose the old one after that. Where there are no hard links either, looking first is all one
 * can do.
 */
static int name_new(const struct qni_output *output)
{
    struct stat info;
#if defined(RENAME_NOREPLACE)
    if (renameat2(AT_FDCWD, output->part, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno == EEXIST)
        return EEXIST;
#endif
    if (link(output->part, output->path) == 0) {
        unlink(output->part);
        return 0;
    }
    if (errno == EEXIST || lstat(output->path, &info) == 0)
        return EEXIST;
    return rename(output->part, output->path) == 0 ? 0 : errno;
}

/* What the umask leaves of write permission to others. It can be asked without changing it, which
 * other threads would notice, in one place only; where that is missing nobody else may write. */
static mode_t others_may_write(void)
{
    char text[4096];
    unsigned mask = 0777;
    const char *line = NULL;
    if (qni_file_text("/proc/self/status", text, sizeof text) > 0)
        line = strstr(text, "\nUmask:");
    for (const char *at = line != NULL ? line + 7 : ""; *at == ' ' || *at == '\t'; at++)
        if (at[1] >= '0' && at[1] <= '7')
            mask = (unsigned)strtoul(at + 1, NULL, 8);
    return (mode_t)(~mask & (S_IWGRP | S_IWOTH));
}

/* The replaced file's mode and owner, as far as we may; what fails leaves what is stricter. */
static void take_mode(const struct qni_output *output)
{
    struct stat ours, old;
    if (fstat(output->fd, &ours) != 0)
        return;
    if (!output->overwrite || stat(output->path, &old) != 0) {
        const mode_t more = others_may_write();
        if (more != 0)
            (void)fchmod(output->fd, (ours.st_mode & 0777) | more);
        return;
    }
    if ((old.st_uid != ours.st_uid || old.st_gid != ours.st_gid) &&
        fchown(output->fd, old.st_uid, old.st_gid) != 0 &&
        fchown(output->fd, (uid_t)-1, old.st_gid) != 0)
        old.st_mode &= ~(mode_t)(S_IWGRP | S_IWOTH); /* not theirs any more to write to */
    (void)fchmod(output->fd, old.st_mode & 0777);
}

qn_status qni_output_publish(struct qni_output *output, qn_error *err)
{
    struct stat info;
    const mode_t mode = fstat(output->fd, &info) == 0 ? info.st_mode : 0600;
    int code;
    take_mode(output);
    if (!output->overwrite)
        code = name_new(output);
    else
        code = rename(output->part, output->path) == 0 ? 0 : errno;
    if (code != 0) /* a part file again */
        (void)fchmod(output->fd, 0644 & mode);
    if (code == EEXIST && !output->overwrite)
        return qni_fail(err, QN_E_EXISTS, "was made by somebody else meanwhile");
    if (code != 0)
        return qni_fail(err, QN_E_WRITE, "cannot be given its name: %s (error %d)", reason(code),
                        code);
    output->part[0] = 0; /* nothing is left to remove */
    sync_folder(output);
    return QN_OK;
}

void qni_output_close(struct qni_output *output, int32_t keep_part)
{
    if (output == NULL)
        return;
    /* Removed while locked, so that nobody else's part file of the same name is hit. */
    if (output->fd >= 0 && !keep_part && output->part[0] != 0)
        unlink(output->part);
    if (output->fd >= 0)
        close(output->fd);
    const struct qni_allocator a = output->allocator;
    qni_free(&a, output->path, output->text_bytes);
    qni_free(&a, output, sizeof *output);
}
