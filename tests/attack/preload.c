/* Operations on files that fail, tear, lie, wait or kill: loaded before the C library (LD_PRELOAD), so that Python,
   Arrow's C++, delta-rs' Rust and compiled kernels all meet it. tests/attack/preload.py compiles it, and has the other
   side of `struct control`, which lies in a file that both map.

   Only the process whose id is in the control block is touched (-1: all that have it), and of it only paths below
   `root`. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 400 /* below root, which may lie anywhere */
#define LOG_ROWS 8192
#define EXPORT __attribute__((visibility("default")))

/* The order is that of preload.KINDS and preload.WAYS */
enum { OPEN, CREATE, READ, STAT, LIST, READDIR, MAP, WRITE, TRUNCATE, FSYNC, RENAME, LINK, DELETE, MKDIR, TIMES, CHMOD,
       LOCK, CLOSE };
enum { PASS, ERROR, ANSWER_LOST, TORN, SHORT, TORN_KILL, KILL_BEFORE, KILL_AFTER, LOST, DOUBLED, DELAY, FULL, CLOCK, FLIPPED };

struct row {
    int32_t kind, made; /* made: the file or folder was not there before */
    int64_t inode, size;
    char path[PATH_BYTES], other[PATH_BYTES];
};

struct control {
    int32_t pid, kind, nth, times, way, error, noting, full; /* full: nothing can be written any more */
    int32_t seen, done, reached, go, rows, unused;
    int64_t clock_ns;       /* how far the wall clock will be off */
    int64_t clock_off_ns;   /* and is */
    char root[PATH_MAX], pattern[PATH_BYTES], trash[PATH_MAX];
    struct row log[LOG_ROWS];
};

static struct control *c;
static __thread int inside;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LASTKEY_PRELOAD");
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) c = at;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

static int is_touched(void) { return c->pid == -1 || c->pid == getpid(); }
static int is_ours(void) { return c && c->pid && !inside && is_touched(); }

/* The absolute path below root, or NULL. */
static const char *below(char *buffer, int dirfd, const char *path) {
    size_t n = 0, root = strlen(c->root);
    if (!path || path[0] != '/') {
        if (dirfd == AT_FDCWD) {
            if (!getcwd(buffer, PATH_MAX)) return NULL;
            n = strlen(buffer);
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
            ssize_t got = readlink(link, buffer, PATH_MAX - 1);
            if (got <= 0) return NULL;
            n = got;
            buffer[n] = 0;
            char *deleted = strstr(buffer, " (deleted)");
            if (deleted) *deleted = 0, n = deleted - buffer;
        }
        if (path && path[0]) buffer[n++] = '/';
    }
    if (path) {
        if (n + strlen(path) + 1 > PATH_MAX) return NULL;
        strcpy(buffer + n, path);
    }
    for (n = strlen(buffer); n > 1 && buffer[n - 1] == '/'; n--) buffer[n - 1] = 0;
    if (strncmp(buffer, c->root, root) || (buffer[root] && buffer[root] != '/')) return NULL;
    return buffer[root] ? buffer + root + 1 : buffer + root;
}

static void note(int kind, const char *rel, const char *other, int made, int64_t inode, int64_t size) {
    if (!c->noting || !rel) return;
    int at = __atomic_fetch_add(&c->rows, 1, __ATOMIC_SEQ_CST);
    if (at >= LOG_ROWS) return;
    struct row *row = &c->log[at];
    row->made = made, row->inode = inode, row->size = size;
    snprintf(row->path, PATH_BYTES, "%s", rel);
    snprintf(row->other, PATH_BYTES, "%s", other ? other : "");
    row->kind = kind + 1; /* last: 0 is a row that was never finished */
}

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

/* What is to happen to an operation. */
static int meet(int kind, const char *rel) {
    if (!rel) return PASS;
    if (c->full && (kind == CREATE || kind == WRITE || kind == MKDIR || kind == LINK)) {
        c->error = ENOSPC;
        return ERROR;
    }
    if (kind != c->kind || !c->nth) return PASS;
    if (strcmp(c->pattern, "*") && fnmatch(c->pattern, rel, FNM_PATHNAME)) return PASS; /* "*": all there are */
    int number = __atomic_add_fetch(&c->seen, 1, __ATOMIC_SEQ_CST);
    if (number < c->nth || (c->times >= 0 && number >= c->nth + c->times)) return PASS;
    __atomic_add_fetch(&c->done, 1, __ATOMIC_SEQ_CST);
    switch (c->way) {
    case KILL_BEFORE: die();
    case DELAY:
        c->reached = 1;
        while (!__atomic_load_n(&c->go, __ATOMIC_SEQ_CST)) usleep(200);
        return PASS;
    case FULL:
        c->full = 1;
        c->error = ENOSPC;
        return kind == WRITE ? TORN : ERROR;
    case CLOCK: c->clock_off_ns = c->clock_ns; return PASS;
    }
    return c->way;
}

static int64_t inode_of(const char *path, int64_t *size) {
    struct stat found;
    inside++;
    int bad = lstat(path, &found);
    inside--;
    if (size) *size = bad ? -1 : found.st_size;
    return bad ? 0 : (int64_t)found.st_ino;
}

/* Keep what is about to lose its name: a power cut may bring the name back. */
static void keep(const char *path) {
    if (!c->trash[0]) return;
    int64_t inode = inode_of(path, NULL);
    if (!inode) return;
    char to[PATH_MAX + 32];
    snprintf(to, sizeof to, "%s/%lld", c->trash, (long long)inode);
    inside++;
    link(path, to);
    inside--;
}

/* An operation that has no bytes to tear. `call` may be evaluated twice. */
#define PLAIN(kind, rel, call) \
    int way = meet(kind, rel); \
    if (way == ERROR || way == TORN || way == SHORT) { errno = c->error; return -1; } \
    if (way == LOST) return 0; \
    long r = call; \
    if (way == DOUBLED) r = call; \
    if (way == KILL_AFTER || way == TORN_KILL) die(); \
    if (way == ANSWER_LOST) { errno = c->error; return -1; }

/* -- opening and closing */

static int opened(int dirfd, const char *path, int flags, mode_t mode, int (*real)(int, const char *, int, ...)) {
    char buffer[PATH_MAX], full[PATH_MAX];
    if (!is_ours()) return real(dirfd, path, flags, mode);
    const char *rel = below(buffer, dirfd, path);
    if (!rel) return real(dirfd, path, flags, mode);
    int writes = (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY;
    int kind = writes ? CREATE : OPEN, way = meet(kind, rel);
    if (way == ERROR || way == TORN || way == SHORT) { errno = c->error; return -1; }
    strcpy(full, buffer);
    int made = writes && !inode_of(full, NULL);
    int fd = real(dirfd, path, flags, mode);
    if (way == DOUBLED && fd >= 0) { inside++; close(fd); inside--; fd = real(dirfd, path, flags, mode); }
    if (way == KILL_AFTER || way == TORN_KILL) die();
    if (way == ANSWER_LOST && fd >= 0) { inside++; close(fd); inside--; errno = c->error; return -1; }
    if (fd >= 0) {
        int kept = errno;
        if ((flags & O_TMPFILE) == O_TMPFILE) note(kind, rel, NULL, 0, 0, -1); /* rel is the folder's: it has no name */
        else note(kind, rel, NULL, made, inode_of(full, NULL), (flags & O_TRUNC) ? 0 : -1);
        errno = kept;
    }
    return fd;
}

#define MODE() mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); \
    mode = va_arg(more, mode_t); va_end(more); }
#define OPENAT() static int (*real)(int, const char *, int, ...); if (!real) *(void **)&real = dlsym(RTLD_NEXT, "openat64")

EXPORT int open(const char *path, int flags, ...) { MODE(); OPENAT(); return opened(AT_FDCWD, path, flags, mode, real); }
EXPORT int open64(const char *path, int flags, ...) { MODE(); OPENAT(); return opened(AT_FDCWD, path, flags, mode, real); }
EXPORT int __open_2(const char *path, int flags) { OPENAT(); return opened(AT_FDCWD, path, flags, 0, real); }
EXPORT int __open64_2(const char *path, int flags) { OPENAT(); return opened(AT_FDCWD, path, flags, 0, real); }
EXPORT int openat(int d, const char *path, int flags, ...) { MODE(); OPENAT(); return opened(d, path, flags, mode, real); }
EXPORT int openat64(int d, const char *path, int flags, ...) { MODE(); OPENAT(); return opened(d, path, flags, mode, real); }

EXPORT int close(int fd) {
    REAL(int, close, int);
    char buffer[PATH_MAX];
    if (!is_ours()) return real(fd);
    int kept = errno;
    const char *rel = below(buffer, fd, NULL);
    errno = kept;
    if (!rel) return real(fd);
    int way = meet(CLOSE, rel);
    int r = real(fd); /* a file that says an error is closed all the same */
    if (way == KILL_AFTER) die();
    if (way == ERROR || way == ANSWER_LOST) { errno = c->error; return -1; }
    note(CLOSE, rel, NULL, 0, 0, 0);
    return r;
}

/* -- bytes */

#define READING(call, half, first) \
    char buffer[PATH_MAX]; \
    if (!is_ours()) return call; \
    const char *rel = below(buffer, fd, NULL); \
    int way = meet(READ, rel); \
    if (way == ERROR || way == TORN) { errno = c->error; return -1; } \
    ssize_t r = way == SHORT ? half : call; \
    if (way == FLIPPED && r > 0) *(char *)(first) ^= 1; \
    if (way == KILL_AFTER) die(); \
    note(READ, rel, NULL, 0, 0, 0); \
    return r

EXPORT ssize_t read(int fd, void *to, size_t n) { REAL(ssize_t, read, int, void *, size_t); READING(real(fd, to, n), real(fd, to, (n + 1) / 2), to); }
EXPORT ssize_t __read_chk(int fd, void *to, size_t n, size_t size) { return read(fd, to, n); }
EXPORT ssize_t pread(int fd, void *to, size_t n, off_t at) { REAL(ssize_t, pread, int, void *, size_t, off_t); READING(real(fd, to, n, at), real(fd, to, (n + 1) / 2, at), to); }
EXPORT ssize_t pread64(int fd, void *to, size_t n, off64_t at) { REAL(ssize_t, pread64, int, void *, size_t, off64_t); READING(real(fd, to, n, at), real(fd, to, (n + 1) / 2, at), to); }
EXPORT ssize_t __pread64_chk(int fd, void *to, size_t n, off64_t at, size_t size) { return pread64(fd, to, n, at); }
EXPORT ssize_t readv(int fd, const struct iovec *to, int n) { REAL(ssize_t, readv, int, const struct iovec *, int); READING(real(fd, to, n), real(fd, to, 1), to->iov_base); }

#define WRITING(all, call, half) \
    char buffer[PATH_MAX]; \
    if (!is_ours()) return call; \
    const char *rel = below(buffer, fd, NULL); \
    int way = meet(WRITE, rel); \
    if (way == ERROR) { errno = c->error; return -1; } \
    if (way == LOST) return all; \
    ssize_t r = way == TORN || way == SHORT || way == TORN_KILL ? half : call; \
    if (way == DOUBLED) r = call; \
    if (way == KILL_AFTER || way == TORN_KILL) die(); \
    if (way == TORN || way == ANSWER_LOST) { errno = c->error; return -1; } \
    note(WRITE, rel, NULL, 0, 0, 0); \
    return r

EXPORT ssize_t write(int fd, const void *from, size_t n) { REAL(ssize_t, write, int, const void *, size_t); WRITING((ssize_t)n, real(fd, from, n), real(fd, from, (n + 1) / 2)); }
EXPORT ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { REAL(ssize_t, pwrite, int, const void *, size_t, off_t); WRITING((ssize_t)n, real(fd, from, n, at), real(fd, from, (n + 1) / 2, at)); }
EXPORT ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t); WRITING((ssize_t)n, real(fd, from, n, at), real(fd, from, (n + 1) / 2, at)); }
static ssize_t total(const struct iovec *from, int n) { ssize_t sum = 0; for (int i = 0; i < n; i++) sum += from[i].iov_len; return sum; }
EXPORT ssize_t writev(int fd, const struct iovec *from, int n) { REAL(ssize_t, writev, int, const struct iovec *, int); WRITING(total(from, n), real(fd, from, n), real(fd, from, 1)); }
EXPORT ssize_t copy_file_range(int in, off64_t *a, int fd, off64_t *b, size_t n, unsigned f) { REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned); WRITING((ssize_t)n, real(in, a, fd, b, n, f), real(in, a, fd, b, (n + 1) / 2, f)); }
EXPORT ssize_t sendfile64(int fd, int in, off64_t *a, size_t n) { REAL(ssize_t, sendfile64, int, int, off64_t *, size_t); WRITING((ssize_t)n, real(fd, in, a, n), real(fd, in, a, (n + 1) / 2)); }
EXPORT ssize_t sendfile(int fd, int in, off_t *a, size_t n) { return sendfile64(fd, in, a, n); }

EXPORT void *mmap(void *a, size_t n, int prot, int flags, int fd, off_t at) {
    REAL(void *, mmap, void *, size_t, int, int, int, off_t);
    char buffer[PATH_MAX];
    if (fd < 0 || !is_ours()) return real(a, n, prot, flags, fd, at);
    const char *rel = below(buffer, fd, NULL);
    if (meet(MAP, rel) == ERROR) { errno = c->error; return MAP_FAILED; }
    note(MAP, rel, NULL, 0, 0, 0);
    return real(a, n, prot, flags, fd, at);
}
EXPORT void *mmap64(void *a, size_t n, int prot, int flags, int fd, off64_t at) { return mmap(a, n, prot, flags, fd, at); }

EXPORT int ftruncate(int fd, off_t n) {
    REAL(int, ftruncate, int, off_t);
    char buffer[PATH_MAX];
    if (!is_ours()) return real(fd, n);
    const char *rel = below(buffer, fd, NULL);
    PLAIN(TRUNCATE, rel, real(fd, n));
    note(TRUNCATE, rel, NULL, 0, 0, n);
    return r;
}
EXPORT int ftruncate64(int fd, off64_t n) { return ftruncate(fd, n); }

/* There is no power cut here: record the flush, and do not wait for the disk. */
static int synced(int fd, int (*real)(int)) {
    char buffer[PATH_MAX];
    if (!is_ours()) return real(fd);
    const char *rel = below(buffer, fd, NULL);
    if (!rel) return real(fd);
    PLAIN(FSYNC, rel, fcntl(fd, F_GETFD) < 0 ? -1 : 0);
    int64_t size, inode = inode_of(buffer, &size);
    note(FSYNC, rel, NULL, 0, inode, size);
    return r;
}
EXPORT int fsync(int fd) { REAL(int, fsync, int); return synced(fd, real); }
EXPORT int fdatasync(int fd) { REAL(int, fdatasync, int); return synced(fd, real); }

/* -- names */

static int moved(int d1, const char *from, int d2, const char *to, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    char buffer[PATH_MAX], other[PATH_MAX];
    if (!is_ours()) return real(d1, from, d2, to, flags);
    const char *rel = below(buffer, d1, from), *new = below(other, d2, to);
    if (!rel || !new) return real(d1, from, d2, to, flags);
    int64_t inode = inode_of(buffer, NULL);
    if (!flags) keep(other);
    PLAIN(RENAME, new, real(d1, from, d2, to, flags));
    if (!r) note(RENAME, rel, new, 0, inode, 0);
    return r;
}
EXPORT int rename(const char *from, const char *to) { return moved(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int renameat(int a, const char *from, int b, const char *to) { return moved(a, from, b, to, 0); }
EXPORT int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return moved(a, from, b, to, flags); }

static int linked(int d1, const char *from, int d2, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    char buffer[PATH_MAX], other[PATH_MAX];
    if (!is_ours()) return real(d1, from, d2, to, flags);
    const char *rel = below(buffer, d1, from), *new = below(other, d2, to);
    if (!rel || !new) return real(d1, from, d2, to, flags);
    PLAIN(LINK, new, real(d1, from, d2, to, flags));
    if (!r) note(LINK, rel, new, 0, inode_of(buffer, NULL), 0);
    return r;
}
EXPORT int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int linkat(int a, const char *from, int b, const char *to, int flags) { return linked(a, from, b, to, flags); }

static int gone(int d, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    char buffer[PATH_MAX];
    if (!is_ours()) return real(d, path, flags);
    const char *rel = below(buffer, d, path);
    if (!rel) return real(d, path, flags);
    if (!(flags & AT_REMOVEDIR)) keep(buffer);
    PLAIN(DELETE, rel, real(d, path, flags));
    if (!r) note(DELETE, rel, NULL, 0, 0, 0);
    return r;
}
EXPORT int unlink(const char *path) { return gone(AT_FDCWD, path, 0); }
EXPORT int unlinkat(int d, const char *path, int flags) { return gone(d, path, flags); }
EXPORT int rmdir(const char *path) { return gone(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORT int mkdirat(int d, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    char buffer[PATH_MAX];
    if (!is_ours()) return real(d, path, mode);
    const char *rel = below(buffer, d, path);
    PLAIN(MKDIR, rel, real(d, path, mode));
    if (!r) note(MKDIR, rel, NULL, 1, 0, 0);
    return r;
}
EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* -- lists */

EXPORT DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    char buffer[PATH_MAX];
    if (!is_ours()) return real(path);
    const char *rel = below(buffer, AT_FDCWD, path);
    int way = meet(LIST, rel);
    if (way == ERROR) { errno = c->error; return NULL; }
    note(LIST, rel, NULL, 0, 0, 0);
    return real(path);
}
EXPORT DIR *fdopendir(int fd) {
    REAL(DIR *, fdopendir, int);
    char buffer[PATH_MAX];
    if (!is_ours()) return real(fd);
    const char *rel = below(buffer, fd, NULL);
    int way = meet(LIST, rel);
    if (way == ERROR) { errno = c->error; return NULL; }
    note(LIST, rel, NULL, 0, 0, 0);
    return real(fd);
}
#define READDIR_(type, name) EXPORT struct type *name(DIR *from) { \
    REAL(struct type *, name, DIR *); \
    char buffer[PATH_MAX]; \
    if (!is_ours()) return real(from); \
    int kept = errno; \
    const char *rel = below(buffer, dirfd(from), NULL); \
    if (meet(READDIR, rel) == ERROR) { errno = c->error; return NULL; } \
    note(READDIR, rel, NULL, 0, 0, 0); \
    errno = kept; \
    return real(from); \
}
READDIR_(dirent, readdir)
READDIR_(dirent64, readdir64)

/* -- what is asked of names, and said of them */

#define ASKED(d, path, call) \
    char buffer[PATH_MAX]; \
    if (!is_ours()) return call; \
    int kept = errno; \
    const char *rel = path && ((const char *)path)[0] ? below(buffer, d, path) : NULL; \
    errno = kept; \
    if (meet(STAT, rel) == ERROR) { errno = c->error; return -1; } \
    note(STAT, rel, NULL, 0, 0, 0); \
    return call

EXPORT int stat(const char *p, struct stat *s) { REAL(int, stat, const char *, struct stat *); ASKED(AT_FDCWD, p, real(p, s)); }
EXPORT int stat64(const char *p, struct stat64 *s) { REAL(int, stat64, const char *, struct stat64 *); ASKED(AT_FDCWD, p, real(p, s)); }
EXPORT int lstat(const char *p, struct stat *s) { REAL(int, lstat, const char *, struct stat *); ASKED(AT_FDCWD, p, real(p, s)); }
EXPORT int lstat64(const char *p, struct stat64 *s) { REAL(int, lstat64, const char *, struct stat64 *); ASKED(AT_FDCWD, p, real(p, s)); }
EXPORT int fstatat(int d, const char *p, struct stat *s, int f) { REAL(int, fstatat, int, const char *, struct stat *, int); ASKED(d, p, real(d, p, s, f)); }
EXPORT int fstatat64(int d, const char *p, struct stat64 *s, int f) { REAL(int, fstatat64, int, const char *, struct stat64 *, int); ASKED(d, p, real(d, p, s, f)); }
EXPORT int __xstat(int v, const char *p, struct stat *s) { return stat(p, s); }
EXPORT int __xstat64(int v, const char *p, struct stat64 *s) { return stat64(p, s); }
EXPORT int __lxstat(int v, const char *p, struct stat *s) { return lstat(p, s); }
EXPORT int __lxstat64(int v, const char *p, struct stat64 *s) { return lstat64(p, s); }
EXPORT int __fxstatat64(int v, int d, const char *p, struct stat64 *s, int f) { return fstatat64(d, p, s, f); }
EXPORT int statx(int d, const char *restrict p, int f, unsigned m, struct statx *restrict s) { REAL(int, statx, int, const char *, int, unsigned, struct statx *); ASKED(d, p, real(d, p, f, m, s)); }

#define SAID(kind, d, path, call) \
    char buffer[PATH_MAX]; \
    if (!is_ours()) return call; \
    const char *rel = below(buffer, d, path); \
    PLAIN(kind, rel, call); \
    note(kind, rel, NULL, 0, 0, 0); \
    return r

EXPORT int utimensat(int d, const char *p, const struct timespec t[2], int f) { REAL(int, utimensat, int, const char *, const struct timespec *, int); SAID(TIMES, d, p, real(d, p, t, f)); }
EXPORT int futimens(int fd, const struct timespec t[2]) { REAL(int, futimens, int, const struct timespec *); SAID(TIMES, fd, NULL, real(fd, t)); }
EXPORT int chmod(const char *p, mode_t mode) { REAL(int, chmod, const char *, mode_t); SAID(CHMOD, AT_FDCWD, p, real(p, mode)); }
EXPORT int fchmod(int fd, mode_t mode) { REAL(int, fchmod, int, mode_t); SAID(CHMOD, fd, NULL, real(fd, mode)); }
EXPORT int flock(int fd, int how) { REAL(int, flock, int, int); SAID(LOCK, fd, NULL, real(fd, how)); }

/* -- the wall clock */

EXPORT int clock_gettime(clockid_t which, struct timespec *t) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int r = real(which, t);
    if (!r && c && c->clock_off_ns && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) && is_touched()) {
        int64_t ns = t->tv_sec * 1000000000LL + t->tv_nsec + c->clock_off_ns;
        t->tv_sec = ns / 1000000000LL, t->tv_nsec = ns % 1000000000LL;
    }
    return r;
}
EXPORT int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
EXPORT time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
