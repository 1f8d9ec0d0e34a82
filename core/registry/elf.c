/* SPDX-License-Identifier: Apache-2.0 */
/* registry/elf.c: a truncated shared object is found out before dlopen maps it and touches what is not there.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
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

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    return offset <= INT64_MAX - bytes && pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Does every segment that will be mapped lie inside the file? */
static bool judge_segments(int fd, uint64_t file_bytes, const ElfW(Ehdr) *header, char *reason, size_t bytes)
{
    if (header->e_phentsize != sizeof(ElfW(Phdr)))
        return true;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        if (!read_at(fd, &segment, sizeof segment, header->e_phoff + (uint64_t)i * sizeof segment)) {
            snprintf(reason, bytes, "the file is truncated: %llu bytes, its program headers lie beyond",
                     (unsigned long long)file_bytes);
            return false;
        }
        bool read_by_loader = segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC;
        if (read_by_loader
            && (segment.p_offset > file_bytes || segment.p_filesz > file_bytes - segment.p_offset)) {
            snprintf(reason, bytes, "the file is truncated: %llu bytes, segment %u wants %llu at %llu",
                     (unsigned long long)file_bytes, i, (unsigned long long)segment.p_filesz,
                     (unsigned long long)segment.p_offset);
            return false;
        }
    }
    return true;
}

bool elf_judge(const char *path, char *reason, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        snprintf(reason, bytes, "cannot be opened: %s", strerror(errno));
        return false;
    }
    struct stat facts;
    ElfW(Ehdr) header;
    bool well = true;
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        snprintf(reason, bytes, "is not a regular file");
        well = false;
    } else if (read_at(fd, &header, sizeof header, 0) && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0
               && header.e_ident[EI_CLASS] == OWN_CLASS) {
        well = judge_segments(fd, (uint64_t)facts.st_size, &header, reason, bytes);
    }
    close(fd);
    return well;
}
