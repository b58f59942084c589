/* Preloaded into a process, lets its n-th call that changes files of a folder, or its n-th large allocation, fail, or kills it
there. Every library's calls count, whatever language it is written in. A write that fails has written half. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DIES = -1 };           /* instead of an error's number */
enum { READS, WRITES, REMOVES }; /* what a call does */

static char root[PATH_MAX];
static int report = -1, error, reading;
static long nth, seen;
static size_t large;

/* Begin to count. nth: the call that fails, 0 for none; code: its errno, or DIES; bytes: what a large allocation has, 0
to count calls that change files, 1 those that open files to read; to: a descriptor for a line on each call on a file, and on the
allocation that fails. */
void arm_faults(const char *folder, long number, int code, size_t bytes, int to) {
    snprintf(root, sizeof root, "%s/", folder);
    nth = number, error = code, report = to;
    reading = bytes == 1, large = bytes > 1 ? bytes : 0;
    __atomic_store_n(&seen, 0, __ATOMIC_SEQ_CST);
}

/* Stop, and report how many calls counted. */
void disarm_faults(void) {
    root[0] = 0;
    dprintf(report, "%ld\n", seen);
}

/* Whether this call fails. A disk that is full remains so for whatever needs space. */
static int fails(const char *call, const char *what, int does) {
    int saved = errno;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    int now = nth && (number == nth || (error == ENOSPC && number > nth)) && (error != ENOSPC || does == WRITES);
    if (!large || number == nth) dprintf(report, "%ld %s %s%s\n", number, call, what, now ? " FAILS" : "");
    errno = saved;
    return now;
}

static int failed(void) {
    if (error == DIES) kill(getpid(), SIGKILL);
    errno = error;
    return -1;
}

static int ours(const char *path) {
    if (!root[0] || large) return 0;
    char whole[2 * PATH_MAX];
    if (path[0] != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    return !strncmp(path, root, strlen(root));
}

static int path_fails(const char *call, const char *path, int does) {
    return (does == READS) == reading && ours(path) && fails(call, path, does);
}

static int file_fails(const char *call, int file) {
    if (!root[0] || large) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || path[0] != '/') return 0;  /* closed, or a pipe */
    path[length] = 0;
    return path_fails(call, path, WRITES);
}

#define DOES(flags) (((flags) & O_ACCMODE) == O_RDONLY ? READS : WRITES)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        return path_fails("open", path, DOES(flags)) ? failed() : REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        int counts = path[0] == '/' || folder == AT_FDCWD; \
        return counts && path_fails("open", path, DOES(flags)) ? failed() : REAL(name)(folder, path, flags, mode); \
    }
OPEN_AT(openat)
OPEN_AT(openat64)

#define OPEN_STREAM(name) \
    FILE *name(const char *path, const char *mode) { \
        return path_fails("open", path, strpbrk(mode, "wa+") ? WRITES : READS) ? (failed(), NULL) : REAL(name)(path, mode); \
    }
OPEN_STREAM(fopen)
OPEN_STREAM(fopen64)

ssize_t write(int file, const void *data, size_t size) {
    if (!file_fails("write", file)) return REAL(write)(file, data, size);
    if (size > 1) REAL(write)(file, data, size / 2);
    return failed();
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (!file_fails("write", file)) return REAL(writev)(file, parts, count);
    if (count > 1) REAL(writev)(file, parts, count / 2);
    return failed();
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    if (!file_fails("write", file)) return REAL(pwrite64)(file, data, size, at);
    if (size > 1) REAL(pwrite64)(file, data, size / 2, at);
    return failed();
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    ssize_t (*real)(int, int, off64_t *, size_t) = dlsym(RTLD_NEXT, "sendfile64");
    if (!file_fails("write", to)) return real(to, from, at, size);
    real(to, from, at, size < 200 ? size / 2 : 100);
    return failed();
}

int ftruncate64(int file, off64_t size) { return file_fails("truncate", file) ? failed() : REAL(ftruncate64)(file, size); }
int fsync(int file) { return file_fails("fsync", file) ? failed() : REAL(fsync)(file); }
int rename(const char *from, const char *to) { return path_fails("rename", to, WRITES) ? failed() : REAL(rename)(from, to); }
int link(const char *from, const char *to) { return path_fails("link", to, WRITES) ? failed() : REAL(link)(from, to); }
int mkdir(const char *path, mode_t mode) { return path_fails("mkdir", path, WRITES) ? failed() : REAL(mkdir)(path, mode); }
int unlink(const char *path) { return path_fails("unlink", path, REMOVES) ? failed() : REAL(unlink)(path); }

/* glibc's own names, since dlsym allocates */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static int allocation_fails(size_t size) { return root[0] && large && size >= large && fails("allocate", "", WRITES); }

void *malloc(size_t size) { return allocation_fails(size) ? (failed(), NULL) : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return allocation_fails(n * size) ? (failed(), NULL) : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return allocation_fails(size) ? (failed(), NULL) : __libc_realloc(old, size); }
int posix_memalign(void **found, size_t alignment, size_t size) {
    if (allocation_fails(size) || !(*found = __libc_memalign(alignment, size))) return ENOMEM;
    return 0;
}
