/* Record what a program asks of the file system below one folder.

   The library is loaded with LD_PRELOAD. It replaces the functions of libc that change files or make
   them durable, calls the real ones, and appends one record for each call to a log. A lock covers
   the call and its record, so the log of all processes and threads has the order of the kernel.

     POWER_ROOT   the absolute real path of the folder
     POWER_LOG    the log, which is outside of that folder
     POWER_LOSES  "files" or "folders": fsync of these is called, but not recorded

   A record describes inodes and not paths, so that links and renames need no special case. A call
   that cannot be described is recorded as such, and the reader of the log refuses to judge it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
  CREATE = 'C', FOLDER = 'D', WRITE = 'W', TRUNCATE = 'T', FSYNC = 'F', SYNC_ALL = 'S',
  RENAME = 'R', LINK = 'L', UNLINK = 'U', MARK = 'M', UNKNOWN = '?'
};

struct record {
  uint64_t process, kind, inode, parent, to_parent, offset, name_bytes, to_name_bytes, data_bytes;
};

/* A name in a folder. */
struct place {
  uint64_t parent;
  char name[NAME_MAX + 1];
};

static char root[PATH_MAX], log_path[PATH_MAX];
static size_t root_bytes;
static dev_t root_device;
static int loses_files, loses_folders;
static int log_descriptor = -1;
static pid_t log_owner;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name)                                                    \
  static __typeof__(name) *real_##name;                               \
  if (!real_##name) real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void give_up(const char *reason) {
  dprintf(2, "recorder: %s: %s\n", reason, strerror(errno));
  abort();
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("POWER_ROOT"), *log = getenv("POWER_LOG");
  const char *loses = getenv("POWER_LOSES");
  struct stat status;
  if (!folder || !log) return;
  if (strlen(folder) >= sizeof root || strlen(log) >= sizeof log_path) give_up("a long path");
  if (stat(folder, &status)) give_up(folder);
  strcpy(log_path, log);
  root_device = status.st_dev;
  loses_files = loses && strstr(loses, "files");
  loses_folders = loses && strstr(loses, "folders");
  pthread_atfork(before_fork, after_fork, after_fork);
  strcpy(root, folder);
  root_bytes = strlen(root);
}

/* Lock the log against all threads and processes. flock needs a descriptor of each process. */
static void lock(void) {
  int saved = errno;
  REAL(open);
  pthread_mutex_lock(&mutex);
  if (log_owner != getpid()) {
    int wanted = real_open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    /* Programs close or replace low descriptors that they do not know. */
    log_descriptor = wanted < 0 ? -1 : fcntl(wanted, F_DUPFD_CLOEXEC, 500);
    if (log_descriptor < 0) give_up(log_path);
    close(wanted);
    log_owner = getpid();
  }
  while (flock(log_descriptor, LOCK_EX))
    if (errno != EINTR) give_up("flock");
  errno = saved;
}

static void unlock(void) {
  int saved = errno;
  flock(log_descriptor, LOCK_UN);
  pthread_mutex_unlock(&mutex);
  errno = saved;
}

static void append(const void *bytes, size_t count) {
  REAL(write);
  while (count) {
    ssize_t done = real_write(log_descriptor, bytes, count);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) give_up("the log");
    bytes = (const char *)bytes + done;
    count -= done;
  }
}

static void put(struct record record, const char *name, const char *to_name, const void *data) {
  int saved = errno;
  record.process = getpid();
  record.name_bytes = strlen(name);
  record.to_name_bytes = strlen(to_name);
  append(&record, sizeof record);
  append(name, record.name_bytes);
  append(to_name, record.to_name_bytes);
  append(data, record.data_bytes);
  errno = saved;
}

static void put_unknown(const char *call) {
  put((struct record){.kind = UNKNOWN}, call, "", "");
}

/* Mark a moment in the log; a program finds this function by its name. */
void power_mark(const char *text) {
  if (!root_bytes) return;
  lock();
  put((struct record){.kind = MARK, .data_bytes = strlen(text)}, "", "", text);
  unlock();
}

/* Record that everything is durable by now, without waiting for the disks of this machine. */
void power_settle(void) {
  if (!root_bytes) return;
  lock();
  put((struct record){.kind = SYNC_ALL}, "", "", "");
  unlock();
}

static int is_inside(const char *path) {
  return !strncmp(path, root, root_bytes) && (path[root_bytes] == '/' || !path[root_bytes]);
}

/* Whether a path relative to a folder is below the root; its place if it is. */
static int find(int folder, const char *path, struct place *place) {
  char whole[2 * PATH_MAX], link[64];
  struct stat status;
  int saved = errno;
  if (!root_bytes || !path || !*path) return 0;
  if (*path == '/') {
    if (!is_inside(path) || strlen(path) >= PATH_MAX) return 0;
    strcpy(whole, path);
  } else {
    ssize_t count = -1;
    if (folder == AT_FDCWD) {
      if (getcwd(whole, PATH_MAX)) count = strlen(whole);
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      count = readlink(link, whole, PATH_MAX - 1);
    }
    errno = saved;
    if (count < 0 || strlen(path) >= PATH_MAX) return 0;
    whole[count] = 0;
    if (!is_inside(whole)) return 0;
    strcat(whole, "/");
    strcat(whole, path);
  }
  for (size_t end = strlen(whole); end > 1 && whole[end - 1] == '/'; end--) whole[end - 1] = 0;
  char *slash = strrchr(whole, '/');
  if ((size_t)(slash - whole) < root_bytes || strlen(slash + 1) > NAME_MAX) return 0;
  strcpy(place->name, slash + 1);
  *slash = 0;
  int found = !stat(whole, &status);
  place->parent = status.st_ino;
  errno = saved;
  return found;
}

/* Whether a descriptor is an open file or folder below the root. */
static int is_ours(int descriptor, struct stat *status) {
  char link[64], path[PATH_MAX];
  int saved = errno, ours = 0;
  if (root_bytes && descriptor >= 0 && !fstat(descriptor, status) &&
      status->st_dev == root_device && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t count = readlink(link, path, sizeof path - 1);
    if (count > 0) {
      path[count] = 0;
      ours = is_inside(path);
    }
  }
  errno = saved;
  return ours;
}

static void put_write(uint64_t inode, off_t offset, const void *data, size_t count) {
  put((struct record){.kind = WRITE, .inode = inode, .offset = offset, .data_bytes = count}, "", "",
      data);
}

/* Record what is in a file from an offset on: the bytes never passed through this process. */
static void put_written(int descriptor, uint64_t inode, off_t offset, size_t count) {
  char link[64], *data = malloc(count ? count : 1);
  int saved = errno;
  REAL(open);
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  int reader = real_open(link, O_RDONLY | O_CLOEXEC);
  if (reader < 0 || !data || pread(reader, data, count, offset) != (ssize_t)count)
    give_up("reading back");
  close(reader);
  put_write(inode, offset, data, count);
  free(data);
  errno = saved;
}

/* Files that are opened */

static int at_open(int folder, const char *path, int flags, mode_t mode) {
  REAL(openat);
  return real_openat(folder, path, flags, mode);
}

static int open_in(int folder, const char *path, int flags, mode_t mode) {
  struct place place;
  struct stat before, after;
  int nameless = (flags & O_TMPFILE) == O_TMPFILE;
  if (!(flags & (O_CREAT | O_TRUNC)) && !nameless) return at_open(folder, path, flags, mode);
  if (!find(folder, path, &place)) return at_open(folder, path, flags, mode);
  lock();
  int existed = !nameless && !fstatat(folder, path, &before, 0);
  int descriptor = at_open(folder, path, flags, mode);
  if (descriptor >= 0 && !fstat(descriptor, &after)) {
    if (nameless)
      put((struct record){.kind = CREATE, .inode = after.st_ino}, "", "", "");
    else if (!existed)
      put((struct record){.kind = CREATE, .inode = after.st_ino, .parent = place.parent},
          place.name, "", "");
    else if (flags & O_TRUNC && S_ISREG(after.st_mode))
      put((struct record){.kind = TRUNCATE, .inode = after.st_ino}, "", "", "");
  }
  unlock();
  return descriptor;
}

static mode_t mode_of(int flags, va_list more) {
  return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

#define OPEN(name)                                                    \
  int name(const char *path, int flags, ...) {                        \
    va_list more;                                                     \
    va_start(more, flags);                                            \
    mode_t mode = mode_of(flags, more);                               \
    va_end(more);                                                     \
    return open_in(AT_FDCWD, path, flags, mode);                      \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                  \
  int name(int folder, const char *path, int flags, ...) {            \
    va_list more;                                                     \
    va_start(more, flags);                                            \
    mode_t mode = mode_of(flags, more);                               \
    va_end(more);                                                     \
    return open_in(folder, path, flags, mode);                        \
  }
OPENAT(openat)
OPENAT(openat64)

int creat(const char *path, mode_t mode) {
  return open_in(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* Writes: the call, then a record of what it wrote */

#define WRITES(type, name, parameters, arguments, descriptor, where, bytes)          \
  type name parameters {                                                             \
    struct stat status;                                                              \
    REAL(name);                                                                      \
    if (!is_ours(descriptor, &status)) return real_##name arguments;                 \
    lock();                                                                          \
    type done = real_##name arguments;                                               \
    if (done > 0) {                                                                  \
      off_t offset = where;                                                          \
      bytes;                                                                         \
    }                                                                                \
    unlock();                                                                        \
    return done;                                                                     \
  }
#define FROM_BUFFER put_write(status.st_ino, offset, data, done)
#define FROM_FILE(descriptor) put_written(descriptor, status.st_ino, offset, done)
#define POSITION(descriptor) lseek(descriptor, 0, SEEK_CUR) - done

WRITES(ssize_t, write, (int file, const void *data, size_t count), (file, data, count), file,
       POSITION(file), FROM_BUFFER)
WRITES(ssize_t, pwrite, (int file, const void *data, size_t count, off_t at),
       (file, data, count, at), file, at, FROM_BUFFER)
WRITES(ssize_t, pwrite64, (int file, const void *data, size_t count, off64_t at),
       (file, data, count, at), file, at, FROM_BUFFER)
WRITES(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count),
       file, POSITION(file), FROM_FILE(file))
WRITES(ssize_t, pwritev, (int file, const struct iovec *parts, int count, off_t at),
       (file, parts, count, at), file, at, FROM_FILE(file))
WRITES(ssize_t, pwritev64, (int file, const struct iovec *parts, int count, off64_t at),
       (file, parts, count, at), file, at, FROM_FILE(file))
WRITES(ssize_t, sendfile, (int file, int from, off_t *at, size_t count), (file, from, at, count),
       file, POSITION(file), FROM_FILE(file))
WRITES(ssize_t, sendfile64, (int file, int from, off64_t *at, size_t count),
       (file, from, at, count), file, POSITION(file), FROM_FILE(file))
WRITES(ssize_t, splice,
       (int from, off64_t *from_at, int file, off64_t *at, size_t count, unsigned flags),
       (from, from_at, file, at, count, flags), file, at ? *at - done : POSITION(file),
       FROM_FILE(file))
WRITES(ssize_t, copy_file_range,
       (int from, off64_t *from_at, int file, off64_t *at, size_t count, unsigned flags),
       (from, from_at, file, at, count, flags), file, at ? *at - done : POSITION(file),
       FROM_FILE(file))

/* Other changes of a file, and what makes it durable */

#define ON_FILE(name, parameters, arguments, descriptor, note)       \
  int name parameters {                                              \
    struct stat status;                                              \
    REAL(name);                                                      \
    if (!is_ours(descriptor, &status)) return real_##name arguments; \
    lock();                                                          \
    int failed = real_##name arguments;                              \
    if (!failed) note;                                               \
    unlock();                                                        \
    return failed;                                                   \
  }
#define RESIZED(bytes) \
  put((struct record){.kind = TRUNCATE, .inode = status.st_ino, .offset = bytes}, "", "", "")
#define ALLOCATED if (at + count > status.st_size) RESIZED(at + count)

static void put_synced(const struct stat *status) {
  if (S_ISDIR(status->st_mode) ? loses_folders : loses_files) return;
  put((struct record){.kind = FSYNC, .inode = status->st_ino}, "", "", "");
}

ON_FILE(ftruncate, (int file, off_t size), (file, size), file, RESIZED(size))
ON_FILE(ftruncate64, (int file, off64_t size), (file, size), file, RESIZED(size))
ON_FILE(posix_fallocate, (int file, off_t at, off_t count), (file, at, count), file, ALLOCATED)
ON_FILE(posix_fallocate64, (int file, off64_t at, off64_t count), (file, at, count), file,
        ALLOCATED)
ON_FILE(fsync, (int file), (file), file, put_synced(&status))
ON_FILE(fdatasync, (int file), (file), file, put_synced(&status))
ON_FILE(fallocate, (int file, int mode, off_t at, off_t count), (file, mode, at, count), file,
        put_unknown("fallocate"))
ON_FILE(fallocate64, (int file, int mode, off64_t at, off64_t count), (file, mode, at, count), file,
        put_unknown("fallocate64"))

static int resize(const char *path, off_t size, int done(const char *, off_t)) {
  struct place place;
  struct stat status;
  if (!find(AT_FDCWD, path, &place)) return done(path, size);
  lock();
  int failed = done(path, size);
  if (!failed && !stat(path, &status)) RESIZED(size);
  unlock();
  return failed;
}

int truncate(const char *path, off_t size) {
  REAL(truncate);
  return resize(path, size, real_truncate);
}

int truncate64(const char *path, off64_t size) {
  REAL(truncate64);
  return resize(path, size, (int (*)(const char *, off_t))real_truncate64);
}

static void sync_all(void) {
  if (loses_files || loses_folders) return;
  lock();
  put((struct record){.kind = SYNC_ALL}, "", "", "");
  unlock();
}

void sync(void) {
  REAL(sync);
  real_sync();
  if (root_bytes) sync_all();
}

int syncfs(int file) {
  REAL(syncfs);
  int failed = real_syncfs(file);
  if (!failed && root_bytes) sync_all();
  return failed;
}

static void refuse_shared(int protection, int flags, int file) {
  struct stat status;
  if (!(protection & PROT_WRITE) || !(flags & MAP_SHARED) || !is_ours(file, &status)) return;
  lock();
  put_unknown("mmap of a file that is shared and writable");
  unlock();
}

#define MAP(name, type)                                                                        \
  void *name(void *place, size_t count, int protection, int flags, int file, type offset) {    \
    REAL(name);                                                                                \
    if (root_bytes) refuse_shared(protection, flags, file);                                    \
    return real_##name(place, count, protection, flags, file, offset);                         \
  }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

/* Names */

static int rename_in(int from, const char *old, int to, const char *new, unsigned flags) {
  struct place before, after;
  REAL(renameat2);
  int old_is_ours = find(from, old, &before), new_is_ours = find(to, new, &after);
  if (!old_is_ours && !new_is_ours) return real_renameat2(from, old, to, new, flags);
  lock();
  int failed = real_renameat2(from, old, to, new, flags);
  if (!failed && (!old_is_ours || !new_is_ours || (flags & ~1u)))
    put_unknown("rename into or out of the folder, or an exchange");
  else if (!failed)
    put((struct record){.kind = RENAME, .parent = before.parent, .to_parent = after.parent},
        before.name, after.name, "");
  unlock();
  return failed;
}

int rename(const char *old, const char *new) { return rename_in(AT_FDCWD, old, AT_FDCWD, new, 0); }

int renameat(int from, const char *old, int to, const char *new) {
  return rename_in(from, old, to, new, 0);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
  return rename_in(from, old, to, new, flags);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
  struct place place;
  struct stat status;
  REAL(linkat);
  if (!find(to, new, &place)) return real_linkat(from, old, to, new, flags);
  lock();
  int failed = real_linkat(from, old, to, new, flags);
  if (!failed && !fstatat(to, new, &status, AT_SYMLINK_NOFOLLOW))
    put((struct record){.kind = LINK, .inode = status.st_ino, .to_parent = place.parent}, "",
        place.name, "");
  unlock();
  return failed;
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *target, int folder, const char *path) {
  struct place place;
  REAL(symlinkat);
  int failed = real_symlinkat(target, folder, path);
  if (!failed && find(folder, path, &place)) {
    lock();
    put_unknown("symlink");
    unlock();
  }
  return failed;
}

int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int folder, const char *path, int flags) {
  struct place place;
  REAL(unlinkat);
  if (!find(folder, path, &place)) return real_unlinkat(folder, path, flags);
  lock();
  int failed = real_unlinkat(folder, path, flags);
  if (!failed)
    put((struct record){.kind = UNLINK, .parent = place.parent}, place.name, "", "");
  unlock();
  return failed;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char *path) {
  int failed = unlink(path);
  return failed && (errno == EISDIR || errno == EPERM) ? rmdir(path) : failed;
}

int mkdirat(int folder, const char *path, mode_t mode) {
  struct place place;
  struct stat status;
  REAL(mkdirat);
  if (!find(folder, path, &place)) return real_mkdirat(folder, path, mode);
  lock();
  int failed = real_mkdirat(folder, path, mode);
  if (!failed && !fstatat(folder, path, &status, 0))
    put((struct record){.kind = FOLDER, .inode = status.st_ino, .parent = place.parent},
        place.name, "", "");
  unlock();
  return failed;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
