/* Holds memory and waits: holder MIB FILE. Half of each page is random, so it compresses to half; FILE is read once.
 * Says "ready", then sleeps for good. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

int main(int argc, char** argv) {
  size_t bytes = (size_t)atoi(argv[1]) << 20;
  uint64_t state = 0;
  if (getrandom(&state, sizeof state, 0) != sizeof state) return 1;
  char* held = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (held == MAP_FAILED) return 1;
  for (size_t page = 0; page < bytes; page += 4096)
    for (size_t at = 0; at < 2048; at += 8) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      uint64_t mixed = state ^ state >> 29;
      memcpy(held + page + at, &mixed, 8);
    }
  if (argc > 2) {
    static char buffer[1 << 18];
    int file = open(argv[2], O_RDONLY);
    if (file < 0) return 1;
    while (read(file, buffer, sizeof buffer) > 0) {
    }
    close(file);
  }
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
