// System calls without glibc around them: for code that shares memory, and thread
// local storage, with another thread that runs (errno would be that thread's).
#pragma once

#include <linux/sched.h>
#include <sys/syscall.h>

#include <type_traits>

namespace dsec::agent {

// clone3 with the stack that `args` names: the child runs entry(argument) on it
// and ends with its result; it never returns here.
inline long clone_with_stack(clone_args* args, int (*entry)(void*), void* argument) {
#if defined(__x86_64__)
  long result = 0;
  register long entry_register asm("r8") = reinterpret_cast<long>(entry);
  register long argument_register asm("r9") = reinterpret_cast<long>(argument);
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %%r9, %%rdi\n\t"
      "call *%%r8\n\t"
      "mov %%eax, %%edi\n\t"
      "mov %[exit_number], %%eax\n\t"
      "syscall\n\t"
      "hlt\n"
      "1:"
      : "=a"(result)
      : "a"(static_cast<long>(SYS_clone3)), "D"(args), "S"(sizeof *args), "r"(entry_register), "r"(argument_register),
        [exit_number] "i"(SYS_exit)
      : "rcx", "r10", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long number asm("x8") = SYS_clone3;
  register long x0 asm("x0") = reinterpret_cast<long>(args);
  register long x1 asm("x1") = sizeof *args;
  register long x9 asm("x9") = reinterpret_cast<long>(entry);
  register long x10 asm("x10") = reinterpret_cast<long>(argument);
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, x10\n\t"
      "blr x9\n\t"
      "mov x8, %[exit_number]\n\t"
      "svc #0\n"
      "1:"
      : "+r"(x0)
      : "r"(number), "r"(x1), "r"(x9), "r"(x10), [exit_number] "i"(SYS_exit)
      : "memory", "cc");
  return x0;
#else
#error "clone3 with a stack of its own is written for x86-64 and arm64"
#endif
}

inline long raw_call(long number, const long (&values)[6]) {
#if defined(__x86_64__)
  long result = 0;
  register long r10 asm("r10") = values[3];
  register long r8 asm("r8") = values[4];
  register long r9 asm("r9") = values[5];
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(values[0]), "S"(values[1]), "d"(values[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#else
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = values[0];
  register long x1 asm("x1") = values[1];
  register long x2 asm("x2") = values[2];
  register long x3 asm("x3") = values[3];
  register long x4 asm("x4") = values[4];
  register long x5 asm("x5") = values[5];
  asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#endif
}

template <typename T>
long word(T value) {
  if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<long>(value);
  } else {
    return static_cast<long>(value);
  }
}

// The kernel's own answer: a negative number is an error.
template <typename... Arguments>
long raw(long number, Arguments... arguments) {
  return raw_call(number, {word(arguments)...});
}

}  // namespace dsec::agent
