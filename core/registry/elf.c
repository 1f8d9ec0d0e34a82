/* SPDX-License-Identifier: Apache-2.0 */
/* registry/elf.c: rejects truncated shared objects, because dlopen of such a file ends the process with SIGBUS. */
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "registry/internal.h"

#if __SIZEOF_POINTER__ == 8
#define OWN_CLASS ELFCLASS64
#else
#define OWN_CLASS ELFCLASS32
#endif

/* Reads exactly `bytes` bytes at `offset`, with several pread calls if necessary. Returns false at the end of the file
 * (*error is 0) and on an error (*error is the errno value). */
static bool read_at(int fd, void *to, size_t bytes, uint64_t offset, int *error)
{
    *error = 0;
    if (offset > INT64_MAX - bytes)
        return false;
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got > 0)
            done += (size_t)got;
        else if (got == 0 || errno != EINTR) {
            *error = got == 0 ? 0 : errno;
            return false;
        }
    }
    return true;
}

/* Checks that every segment that the loader reads is inside the file. Returns a result. */
static int validate_segments(int fd, uint64_t file_bytes, const ElfW(Ehdr) *header, const char *path, char *reason,
                             size_t bytes)
{
    int error;
    if (header->e_phentsize != sizeof(ElfW(Phdr)))
        return VALIDATE_OK;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        if (!read_at(fd, &segment, sizeof segment, header->e_phoff + (uint64_t)i * sizeof segment, &error)) {
            if (error != 0)
                return validate_errno(error, "reading", path, reason, bytes);
            snprintf(reason, bytes,
                     "the file is truncated: it has %llu bytes, and its program headers are beyond its end",
                     (unsigned long long)file_bytes);
            return VALIDATE_REFUSED;
        }
        bool read_by_loader = segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC;
        if (read_by_loader
            && (segment.p_offset > file_bytes || segment.p_filesz > file_bytes - segment.p_offset)) {
            snprintf(reason, bytes, "the file is truncated: it has %llu bytes, and segment %u has %llu bytes at %llu",
                     (unsigned long long)file_bytes, i, (unsigned long long)segment.p_filesz,
                     (unsigned long long)segment.p_offset);
            return VALIDATE_REFUSED;
        }
    }
    return VALIDATE_OK;
}

int elf_validate(int fd, const char *path, char *reason, size_t bytes)
{
    struct stat facts;
    ElfW(Ehdr) header;
    int error;
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        snprintf(reason, bytes, "%s is not a regular file", path);
        return VALIDATE_REFUSED;
    }
    if (!read_at(fd, &header, sizeof header, 0, &error))
        return error != 0 ? validate_errno(error, "reading", path, reason, bytes) : VALIDATE_OK;
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != OWN_CLASS)
        return VALIDATE_OK;
    return validate_segments(fd, (uint64_t)facts.st_size, &header, path, reason, bytes);
}
