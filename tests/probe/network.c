// The probe's client of the way out: what a program of a sandbox would do, said
// in lines. The proxy is the one that the environment names; addresses are
// numbers, because a static program has no resolver to rely on.
#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { kSeconds = 8 };

static void say_error(const char* name) {
  const char* text = strerrorname_np(errno);
  printf("%s %s\n", name, text != NULL ? text : "?");
  fflush(stdout);
}

// A connected socket, or -1 with errno.
static int dial(const char* address, int port) {
  struct sockaddr_storage to = {0};
  socklen_t length = sizeof(struct sockaddr_in);
  if (strchr(address, ':') != NULL) {
    struct sockaddr_in6* v6 = (struct sockaddr_in6*)&to;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)port);
    length = sizeof *v6;
    if (inet_pton(AF_INET6, address, &v6->sin6_addr) != 1) return errno = EINVAL, -1;
  } else {
    struct sockaddr_in* v4 = (struct sockaddr_in*)&to;
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, address, &v4->sin_addr) != 1) return errno = EINVAL, -1;
  }
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const struct timeval limit = {.tv_sec = kSeconds};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (connect(fd, (struct sockaddr*)&to, length) == 0) return fd;
  const int number = errno;
  close(fd);
  errno = number;
  return -1;
}

static int dial_proxy(void) {
  const char* named = getenv("http_proxy");
  char address[64];
  int port = 0;
  if (named == NULL || sscanf(named, "http://%63[0-9.]:%d", address, &port) != 2) return errno = ENOENT, -1;
  return dial(address, port);
}

static int put(int fd, const char* text) {
  for (size_t left = strlen(text); left > 0;) {
    const ssize_t sent = send(fd, text, left, MSG_NOSIGNAL);
    if (sent <= 0) return -1;
    text += sent;
    left -= (size_t)sent;
  }
  return 0;
}

// Prints "status N", an empty line and what follows the answer's head. 0 for a 200.
static int print_answer(int fd) {
  static char bytes[1 << 16];
  size_t size = 0;
  for (ssize_t got; size + 1 < sizeof bytes && (got = recv(fd, bytes + size, sizeof bytes - 1 - size, 0)) > 0;) size += (size_t)got;
  bytes[size] = 0;
  int status = 0;
  const char* body = strstr(bytes, "\r\n\r\n");
  if (sscanf(bytes, "HTTP/1.1 %d", &status) != 1 || body == NULL) {
    printf("status none\n\n%s", bytes);
    return 2;
  }
  printf("status %d\n\n%s", status, body + 4);
  return status == 200 ? 0 : 1;
}

// GET of an absolute URL through the proxy, with further header lines.
static int fetch(const char* url, int count, char** headers) {
  const int fd = dial_proxy();
  if (fd < 0) return say_error("proxy"), 2;
  char host[512] = "";
  sscanf(url, "%*[^:]://%511[^/]", host);
  char request[4096];
  int at = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", url, host);
  for (int i = 0; i < count && at < (int)sizeof request; ++i) at += snprintf(request + at, sizeof request - (size_t)at, "%s\r\n", headers[i]);
  if (at + 3 > (int)sizeof request) return 2;
  strcat(request, "\r\n");
  if (put(fd, request) < 0) return say_error("send"), 2;
  return print_answer(fd);
}

// CONNECT to "host:port"; with `hold`, says "open" and, when the tunnel has been cut, "closed".
static int connect_through(const char* target, int hold) {
  const int fd = dial_proxy();
  if (fd < 0) return say_error("proxy"), 2;
  char request[1024];
  snprintf(request, sizeof request, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target);
  if (put(fd, request) < 0) return say_error("send"), 2;
  if (!hold) {
    shutdown(fd, SHUT_WR);
    return print_answer(fd);
  }
  char head[1024];
  size_t size = 0;
  while (size + 1 < sizeof head && recv(fd, head + size, 1, 0) == 1) {
    head[++size] = 0;
    if (strstr(head, "\r\n\r\n") != NULL) break;
  }
  if (strncmp(head, "HTTP/1.1 200", 12) != 0) return printf("refused %.60s\n", head), 1;
  printf("open\n");
  fflush(stdout);
  struct pollfd watched = {.fd = fd, .events = POLLIN};
  char byte;
  for (;;) {
    if (poll(&watched, 1, 120000) <= 0) return printf("still open\n"), 1;
    if (recv(fd, &byte, 1, MSG_DONTWAIT) > 0) continue;
    printf("closed\n");
    return 0;
  }
}

// One A query to 127.0.0.1:53; "rcode N" and an "a ADDRESS" for each answer.
static int ask_name(const char* name) {
  unsigned char packet[512] = {0x12, 0x34, 0x01, 0x00, 0, 1};
  size_t size = 12;
  for (const char* label = name; *label != 0;) {
    const size_t length = strcspn(label, ".");
    if (length == 0 || length > 63 || size + length + 6 > sizeof packet) return 2;
    packet[size++] = (unsigned char)length;
    memcpy(packet + size, label, length);
    size += length;
    label += length + (label[length] == '.');
  }
  memcpy(packet + size, "\0\0\1\0\1", 5);
  size += 5;
  const size_t question = size;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const struct timeval limit = {.tv_sec = kSeconds};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (connect(fd, (const struct sockaddr*)&to, sizeof to) != 0 || send(fd, packet, size, 0) < 0) return say_error("dns"), 2;
  const ssize_t got = recv(fd, packet, sizeof packet, 0);
  if (got < 12) return say_error("dns"), 2;
  printf("rcode %d\n", packet[3] & 15);
  size_t at = question;
  for (int left = packet[6] << 8 | packet[7]; left > 0 && at + 12 <= (size_t)got; --left) {
    at += 2;  // a pointer to the question
    const int type = packet[at] << 8 | packet[at + 1];
    const size_t length = (size_t)(packet[at + 8] << 8 | packet[at + 9]);
    at += 10;
    if (type == 1 && length == 4) printf("a %d.%d.%d.%d\n", packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    at += length;
  }
  return 0;
}

// Opens `count` connections to the proxy, each with half a request, and keeps them.
static int flood(int count) {
  int made = 0;
  for (int i = 0; i < count; ++i) {
    const int fd = dial_proxy();
    if (fd < 0) break;
    if (put(fd, "GET http://") == 0) ++made;
  }
  printf("made %d\n", made);
  fflush(stdout);
  sleep(60);
  return 0;
}

// What would let a sandbox forge packets or see others'.
static int try_raw_sockets(void) {
  const struct {
    const char* name;
    int family, type, protocol;
  } kinds[] = {{"inet_raw", AF_INET, SOCK_RAW, IPPROTO_RAW},   {"inet_icmp", AF_INET, SOCK_RAW, IPPROTO_ICMP},
               {"inet_tcp", AF_INET, SOCK_RAW, IPPROTO_TCP},   {"inet6_raw", AF_INET6, SOCK_RAW, IPPROTO_RAW},
               {"packet_raw", AF_PACKET, SOCK_RAW, 0x0300},    {"packet_dgram", AF_PACKET, SOCK_DGRAM, 0x0300}};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    const int fd = socket(kinds[i].family, kinds[i].type | SOCK_CLOEXEC, kinds[i].protocol);
    if (fd < 0) {
      say_error(kinds[i].name);
    } else {
      printf("%s 0\n", kinds[i].name);
      close(fd);
    }
  }
  return 0;
}

// Listens on an abstract unix socket, says so, and stays.
static int listen_abstract(const char* name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path + 1, name, sizeof address.sun_path - 2);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, (struct sockaddr*)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) != 0 || listen(fd, 8) != 0)
    return say_error("listen"), 2;
  printf("listening\n");
  fflush(stdout);
  sleep(60);
  return 0;
}

int probe_network(int argc, char** argv) {
  const char* verb = argv[1];
  const char* text = argc > 2 ? argv[2] : "";
  if (strcmp(verb, "fetch") == 0) return fetch(text, argc - 3, argv + 3);
  if (strcmp(verb, "connect") == 0) return connect_through(text, 0);
  if (strcmp(verb, "hold") == 0) return connect_through(text, 1);
  if (strcmp(verb, "name") == 0) return ask_name(text);
  if (strcmp(verb, "raw-sockets") == 0) return try_raw_sockets();
  if (strcmp(verb, "flood") == 0) return flood(atoi(text));
  if (strcmp(verb, "listen-abstract") == 0) return listen_abstract(text);
  if (strcmp(verb, "dial") == 0 && argc == 4) {
    const int fd = dial(text, atoi(argv[3]));
    if (fd >= 0) return printf("dial 0\n"), 0;
    return say_error("dial"), 1;
  }
  return -1;
}
