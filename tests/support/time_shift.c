/* Moves the clocks of the programs that load it: LD_PRELOAD of the simulation.
 *
 * The nanoseconds in the file that DSEC_TIME_SHIFT names are added to what the clocks tell, in
 * all processes at once. Who sleeps until a time looks again every 20 ms, so a step of hours is seen
 * at once. Times of files and of the kernel's own timers for I/O stay real. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LOOK_AGAIN 20000000LL

static const volatile int64_t none;
static const volatile int64_t* shift = &none;
static int (*real_gettime)(clockid_t, struct timespec*);
static int (*real_timerfd)(int, int, const struct itimerspec*, struct itimerspec*);
static int (*real_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

__attribute__((constructor)) static void load(void) {
  real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_timerfd = dlsym(RTLD_NEXT, "timerfd_settime");
  real_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  const char* path = getenv("DSEC_TIME_SHIFT");
  if (path == NULL) return;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* page = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (page != MAP_FAILED) shift = page;
}

static int is_moved(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME || clock == CLOCK_REALTIME_COARSE ||
         clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
}

static int64_t nanoseconds(const struct timespec* t) { return t->tv_sec * SECOND + t->tv_nsec; }

static struct timespec timespec_of(int64_t ns) {
  if (ns < 0) ns = 0;
  struct timespec out = {ns / SECOND, ns % SECOND};
  return out;
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  if (real_gettime == NULL) load();
  int failed = real_gettime(clock, out);
  if (!failed && is_moved(clock)) *out = timespec_of(nanoseconds(out) + *shift);
  return failed;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

/* Early is harmless: who is woken looks at the clock. */
int timerfd_settime(int fd, int flags, const struct itimerspec* value, struct itimerspec* old) {
  struct itimerspec soon = *value;
  int64_t due = nanoseconds(&value->it_value);
  if (due == 0) return real_timerfd(fd, flags, value, old);
  if (flags & TFD_TIMER_ABSTIME) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    due = due > nanoseconds(&now) ? due - nanoseconds(&now) : 1;
  }
  soon.it_value = timespec_of(due < LOOK_AGAIN ? due : LOOK_AGAIN);
  return real_timerfd(fd, flags & ~TFD_TIMER_ABSTIME, &soon, old);
}

/* A wake-up without a reason every 20 ms, which every caller has to expect. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  struct timespec now;
  clock_gettime(clock, &now);
  int64_t left = nanoseconds(until) - nanoseconds(&now);
  int cut = left > LOOK_AGAIN;
  real_gettime(clock, &now);
  struct timespec by = timespec_of(nanoseconds(&now) + (cut ? LOOK_AGAIN : left > 0 ? left : 0));
  int outcome = real_clockwait(condition, mutex, clock, &by);
  return cut && outcome != 0 ? 0 : outcome;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const struct timespec* until) {
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, until);
}
