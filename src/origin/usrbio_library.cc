#include "origin/usrbio_library.h"

#include <dlfcn.h>

namespace dsec::origin {

namespace {

template <typename Call>
bool find_call(void* library, const char* name, Call& out) {
  out = reinterpret_cast<Call>(::dlsym(library, name));
  return out != nullptr;
}

}  // namespace

Result<std::shared_ptr<const UsrbioLibrary>> UsrbioLibrary::load(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return Error(ErrorCode::kUnavailable, "USRBIO: " + std::string(why == nullptr ? path : why));
  }
  std::shared_ptr<UsrbioLibrary> out(new UsrbioLibrary());
  const bool all = find_call(library, "hf3fs_is_hf3fs", out->is_hf3fs) && find_call(library, "hf3fs_extract_mount_point", out->extract_mount_point) &&
                   find_call(library, "hf3fs_iovcreate", out->iovcreate) && find_call(library, "hf3fs_iovdestroy", out->iovdestroy) &&
                   find_call(library, "hf3fs_iorcreate4", out->iorcreate4) && find_call(library, "hf3fs_iordestroy", out->iordestroy) &&
                   find_call(library, "hf3fs_reg_fd", out->reg_fd) && find_call(library, "hf3fs_dereg_fd", out->dereg_fd) &&
                   find_call(library, "hf3fs_io_entries", out->io_entries) && find_call(library, "hf3fs_prep_io", out->prep_io) &&
                   find_call(library, "hf3fs_submit_ios", out->submit_ios) && find_call(library, "hf3fs_wait_for_ios", out->wait_for_ios);
  if (!all) return Error(ErrorCode::kUnavailable, "USRBIO: " + path + " lacks a call that is needed");
  return std::shared_ptr<const UsrbioLibrary>(std::move(out));
}

}  // namespace dsec::origin
