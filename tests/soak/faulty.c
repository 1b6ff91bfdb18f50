/* File operations with faults, loaded with LD_PRELOAD.
 *
 * Operations below one folder are counted: opening a file for writing, write, fsync, rename, unlink, mkdir, rmdir,
 * close, truncate, and reading. From the n-th operation of a kind on, for a number of operations, the armed action
 * happens instead: an error, a short write, or SIGKILL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, SYNC, RENAME, UNLINK, MKDIR, CLOSE, TRUNCATE, READ, KINDS };
enum { FAIL, SHORT_FAIL, SHORT_ONCE, ONE_BYTE, KILL_BEFORE, KILL_HALF, KILL_AFTER };
#define FILES 4096

static char root[4096];
static size_t root_size;
static int armed_kinds, armed_action, armed_error; /* armed_kinds: a bit per kind */
static long armed_first, armed_count;
static long counts[KINDS], matched, hits;
static unsigned char inside[FILES];

static int is_inside(const char *path) {
    return root_size && path && (path[0] != '/' || strncmp(path, root, root_size) == 0);
}

/* Count an operation; return whether the action applies to it. */
static int hit(int kind) {
    counts[kind]++;
    if (!(armed_kinds >> kind & 1)) return 0;
    matched++;
    if (matched < armed_first || matched >= armed_first + armed_count) return 0;
    hits++;
    return 1;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Return 1 if the caller must fail with errno set, 2 if the process must be killed afterwards. */
static int outcome(int kind) {
    if (!hit(kind)) return 0;
    if (armed_action == KILL_BEFORE || armed_action == KILL_HALF) die();
    if (armed_action == KILL_AFTER) return 2;
    if (armed_action != FAIL && armed_action != SHORT_FAIL) return 0;
    errno = armed_error;
    return 1;
}

void faulty_root(const char *path) {
    strncpy(root, path, sizeof(root) - 1);
    root_size = strlen(root);
}

void faulty_arm(int kinds, int action, int error, long first, long count) {
    armed_kinds = kinds, armed_action = action, armed_error = error, armed_first = first, armed_count = count;
    matched = hits = 0;
    memset(counts, 0, sizeof(counts));
}

long faulty_count(int kind) { return counts[kind]; }
long faulty_matched(void) { return matched; }
long faulty_hits(void) { return hits; }

#define REAL(result, name, ...)                                             \
    static result (*real)(__VA_ARGS__);                                     \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int opened(int fd, int below) {
    if (fd >= 0 && fd < FILES) inside[fd] = (unsigned char)below;
    return fd;
}

#define OPENING(name)                                                                    \
    int name(const char *path, int flags, ...) {                                         \
        REAL(int, #name, const char *, int, ...);                                        \
        va_list list;                                                                    \
        va_start(list, flags);                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;          \
        va_end(list);                                                                    \
        int below = is_inside(path), writes = (flags & O_ACCMODE) != O_RDONLY;           \
        int state = below && writes ? outcome(OPEN) : 0;                                 \
        if (state == 1) return -1;                                                       \
        int fd = real(path, flags, mode);                                                \
        if (state == 2) die();                                                           \
        return opened(fd, below ? (writes ? 1 : 2) : 0);                                 \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                 \
    int name(int folder, const char *path, int flags, ...) {                             \
        REAL(int, #name, int, const char *, int, ...);                                   \
        va_list list;                                                                    \
        va_start(list, flags);                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;          \
        va_end(list);                                                                    \
        int below = folder == AT_FDCWD && is_inside(path), writes = (flags & O_ACCMODE) != O_RDONLY; \
        int state = below && writes ? outcome(OPEN) : 0;                                 \
        if (state == 1) return -1;                                                       \
        int fd = real(folder, path, flags, mode);                                        \
        if (state == 2) die();                                                           \
        return opened(fd, below ? (writes ? 1 : 2) : 0);                                 \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

FILE *fopen64(const char *path, const char *mode) {
    REAL(FILE *, "fopen64", const char *, const char *);
    int below = is_inside(path) && !strchr(mode, 'r');
    int state = below ? outcome(OPEN) : 0;
    if (state == 1) return NULL;
    FILE *file = real(path, mode);
    if (state == 2) die();
    return file;
}

static int is_written(int fd) { return fd >= 0 && fd < FILES && inside[fd] == 1; }

static ssize_t partly(int fd, const void *data, size_t size, int *done) {
    REAL(ssize_t, "write", int, const void *, size_t);
    *done = 0;
    if (!is_written(fd)) return 0;
    if (!hit(WRITE)) return 0;
    size_t half = size / 2;
    *done = 1;
    switch (armed_action) {
        case KILL_BEFORE: die();
        case KILL_HALF: if (half) real(fd, data, half); die();
        case KILL_AFTER: real(fd, data, size); die();
        case SHORT_ONCE: return real(fd, data, half ? half : size);
        case ONE_BYTE: return real(fd, data, size ? 1 : 0);
        case SHORT_FAIL: if (half) real(fd, data, half); errno = armed_error; return -1;
        default: errno = armed_error; return -1;
    }
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int done;
    ssize_t result = partly(fd, data, size, &done);
    return done ? result : real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int done = 0;
    ssize_t result = count > 0 ? partly(fd, pieces[0].iov_base, pieces[0].iov_len, &done) : 0;
    return done ? result : real(fd, pieces, count);
}

ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (fd >= 0 && fd < FILES && inside[fd] && outcome(READ) == 1) return -1;
    return real(fd, data, size);
}

#define ON_FILE(name, kind)                                                              \
    int name(int fd) {                                                                   \
        REAL(int, #name, int);                                                           \
        int state = is_written(fd) ? outcome(kind) : 0;                                  \
        if (kind == CLOSE && fd >= 0 && fd < FILES) inside[fd] = 0;                      \
        int error = errno, result = state == 1 && kind != CLOSE ? -1 : real(fd);         \
        if (state == 2) die();                                                           \
        if (state == 1) { errno = error; return -1; }                                    \
        return result;                                                                   \
    }
ON_FILE(fsync, SYNC)
ON_FILE(fdatasync, SYNC)
ON_FILE(close, CLOSE)

#define TRUNCATING(name, type)                                                           \
    int name(int fd, type size) {                                                        \
        REAL(int, #name, int, type);                                                     \
        int state = is_written(fd) ? outcome(TRUNCATE) : 0;                              \
        if (state == 1) return -1;                                                       \
        int result = real(fd, size);                                                     \
        if (state == 2) die();                                                           \
        return result;                                                                   \
    }
TRUNCATING(ftruncate, off_t)
TRUNCATING(ftruncate64, off64_t)

#define ON_PATH(name, kind)                                                              \
    int name(const char *path) {                                                         \
        REAL(int, #name, const char *);                                                  \
        int state = is_inside(path) ? outcome(kind) : 0;                                 \
        if (state == 1) return -1;                                                       \
        int result = real(path);                                                         \
        if (state == 2) die();                                                           \
        return result;                                                                   \
    }
ON_PATH(unlink, UNLINK)
ON_PATH(rmdir, UNLINK)

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    int state = root_size && (folder != AT_FDCWD ? folder < FILES && inside[folder] : is_inside(path)) ? outcome(UNLINK) : 0;
    if (state == 1) return -1;
    int result = real(folder, path, flags);
    if (state == 2) die();
    return result;
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    struct stat status;
    int state = is_inside(path) && stat(path, &status) ? outcome(MKDIR) : 0; /* an existing folder is not created */
    if (state == 1) return -1;
    int result = real(path, mode);
    if (state == 2) die();
    return result;
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int state = is_inside(to) ? outcome(RENAME) : 0;
    if (state == 1) return -1;
    int result = real(from, to);
    if (state == 2) die();
    return result;
}
