/* A service that needs 5 ms of CPU every 20 ms: service SECONDS. Prints, for each time, the microseconds from when it
 * was due until it was done. A hog without arguments uses a CPU for ever. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PERIOD 20000000LL
#define WORK 5000000LL

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char** argv) {
  volatile uint64_t spin = 0;
  if (argc < 2)
    for (;;) spin++;
  int count = atoi(argv[1]) * 50;
  int64_t* took = malloc(sizeof *took * count);
  int64_t due = now(CLOCK_MONOTONIC) + PERIOD;
  for (int i = 0; i < count; i++, due += PERIOD) {
    struct timespec until = {due / 1000000000LL, due % 1000000000LL};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    int64_t begun = now(CLOCK_THREAD_CPUTIME_ID);
    while (now(CLOCK_THREAD_CPUTIME_ID) - begun < WORK)
      for (int k = 0; k < 1000; k++) spin++;
    took[i] = now(CLOCK_MONOTONIC) - due;
  }
  for (int i = 0; i < count; i++) printf("%lld\n", (long long)(took[i] / 1000));
  return 0;
}
